"""What another version wrote is refused in one sentence that names the version and what to do."""

import json
import re

import pytest
import torch

import cutlayer
from cutlayer import Plan
from cutlayer.data import Digits
from cutlayer.engines.folder import load_plan
from cutlayer.engines.grpc.deploy import _begin
from cutlayer.engines.local.start import train
from cutlayer.training import checkpoint
from cutlayer.training.plan.fields import FIELDS, RENAMED
from cutlayer.training.plan.plan_text import read_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "a"
    train(Plan(data=Digits(limit=60), epochs=1, batch_size=30), out)
    return out


def written_by(folder, version):
    path = folder / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": version}))


@pytest.mark.parametrize("version", ["0.1.0", "1.2.0"])
def test_a_run_folder(folder, version):
    before = (folder / "plan.json").read_text()
    written_by(folder, version)
    with pytest.raises(ValueError, match=f"cutlayer {re.escape(version)}, which this version .* or start anew"):
        load_plan(folder)
    with pytest.raises(ValueError, match=f"cutlayer {re.escape(version)}, which this version"):
        _begin(folder, Plan())
    (folder / "plan.json").write_text(before)
    assert load_plan(folder).epochs == 1


def test_a_later_bug_fix_of_the_same_version_goes_on(folder):
    major, minor, _ = cutlayer.__version__.split(".")
    written_by(folder, f"{major}.{minor}.99")
    assert load_plan(folder).epochs == 1


def test_a_snapshot(tmp_path, monkeypatch):
    path = tmp_path / "snapshot-3.safetensors"
    monkeypatch.setattr(checkpoint, "__version__", "0.1.0")
    checkpoint.save(path, {"a": torch.zeros(2)}, {"epoch": 1})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"snapshot-3.safetensors was written by cutlayer 0\.1\.0, .* or start anew"):
        checkpoint.load(path)


def test_a_plan_text_is_told_what_its_fields_are_called_now():
    with pytest.raises(
        ValueError, match=r"a plan of cutlayer 0\.1: batch is now batch_size, turn is now local_steps"
    ):
        read_plan("Plan(batch=32, turn=2)")
    now = {new.partition("=")[0] for new in RENAMED.values()}
    assert now <= set(FIELDS) and not set(RENAMED) & set(FIELDS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("home=0.5", r"home is now protocol=Bypass\(home=\.\.\.\)"),
        ("protocol=Bypass, fusion='hybrid'", r"fusion is now protocol=Bypass\(fusion=\.\.\.\)"),
        ("weights='w.pt'", r"weights is now start=Pretrained\("),
        ("weights='w.pt', skip_tail=True", r"skip_tail is now start=Pretrained\(\.\.\., skip_tail=True\)"),
        ("down=Quantize(bits=8)", r"down is now compression=Compression\(answers=\.\.\.\)"),
        ("back=Quantize(bits=8)", r"back is now compression=Compression\(gradients=\.\.\.\)"),
    ],
)
def test_a_field_that_became_an_argument_says_of_what(folder, old, new):
    with pytest.raises(ValueError, match=new):
        read_plan(f"Plan({old})")
    path = folder / "plan.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "plan": f"Plan({old})"}))
    with pytest.raises(ValueError, match=new):
        load_plan(folder)
    path.write_text(before)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--turn", "--local-steps"),
        ("--own", "--own-client-network"),
        ("--batch=3", "--batch-size"),
        ("--home=0.3", "--protocol 'Bypass(home=...)'"),
        ("--weights", "--start 'Pretrained(...)'"),
        ("--skip-tail", "--start 'Pretrained(..., skip_tail=True)'"),
        ("--down", "--compression 'Compression(answers=...)'"),
    ],
)
def test_an_option_of_before_is_told_its_name(command, old, new):
    code, _, err = command("train", old)
    assert code == 1 and f"is called {new} since version 0.2" in err
