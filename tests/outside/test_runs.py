"""Plug-ins of somebody else through whole runs: train and resume, audit with processes, an attack on a recording."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typed import TYPED

from cutlayer.audit import AuditSpec, audit
from cutlayer.core.errors import Interrupted
from cutlayer.core.spec import spec
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.training.plan.plan_text import read_plan

QUICK = ["--data", "Digits(limit=200)", "--threads", "1"]
GUARD = "sign_bit.py:SignBit(scale=2.0)"


def test_train_and_resume_with_all_of_them(plugins, command):
    plan = read_plan("recipe.py:everything")
    whole = start.train(plan, "whole")
    assert "large_gradients:LargeGradients" in whole["plan"] and whole["ledger"]
    # The same secrets, stopped in the middle.
    secret = json.loads(Path("whole/private.json").read_text())["private_seed"]
    steps = []
    with pytest.raises(Interrupted, match="with the same recipe and options"):
        start.train(
            plan.__class__(**{**vars(plan), "private_seed": secret}), "half",
            follow=start.Following(on_step=lambda one: steps.append(one.step), stop=lambda: len(steps) >= 2),
        )  # fmt: skip
    code, _, err = command("train", "recipe.py:everything", "--resume", "half", "--threads", "1")
    assert code == 0, err
    ours, theirs = load_file("half/model.safetensors"), load_file("whole/model.safetensors")
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()) and ours


def test_a_folder_imports_nothing_until_somebody_names_the_file(plugins, command, monkeypatch):
    code, out, err = command("train", *QUICK, "--guard", GUARD, "--epochs", "1", "--out", "a", "--json")
    assert code == 0, err
    bits = json.loads(out)["bytes_up"]
    assert json.loads(Path("a/plan.json").read_text())["code"].keys() == {"sign_bit.py:SignBit"}
    code, out, _ = command("train", *QUICK, "--epochs", "1", "--out", "b", "--json")
    assert bits < 0.6 * json.loads(out)["bytes_up"], "a bit a number; du has all of its own"
    forget(monkeypatch)
    code, _, err = command("train", "--threads", "1", "--resume", "a")
    assert code == 1 and "type --code sign_bit.py beside it" in err and "Traceback" not in err
    Path("a/result.json").unlink()  # as if it had been killed before its end
    assert command("train", "--threads", "1", "--resume", "a", "--code", "sign_bit.py")[0] == 0
    Path("a/result.json").unlink()
    monkeypatch.chdir("..")
    assert command("train", "--threads", "1", "--resume", "plugins/a", "--code", "plugins/sign_bit.py")[0] == 0
    Path("plugins/sign_bit.py").write_text(
        Path("plugins/sign_bit.py").read_text().replace("clamp(-1, 1)", "clamp(-2, 2)")
    )
    code, _, err = command("train", "--threads", "1", "--resume", "plugins/a", "--code", "plugins/sign_bit.py")
    assert code == 1 and "was made with another source of SignBit (digest" in err


def forget(monkeypatch):
    """As a new process starts."""
    monkeypatch.setenv("CUTLAYER_NAMED_FILES", "{}")


def test_other_files_may_change(plugins):
    """A client's own lines in a recipe are nobody's business: what counts is what a class is made of."""
    before = read_plan("recipe.py:everything").code()
    for name in ("recipe.py", "nearest.py"):
        (plugins / name).write_text((plugins / name).read_text() + "\nREMARK = 1\n")
    assert read_plan("recipe.py:everything").code() == before


@pytest.mark.campaign
def test_audit_with_two_processes(plugins, command):
    # Small pictures: each process trains the floors' decoder in full.
    np.savez("small.npz", x=np.random.rand(80, 11, 11).astype("float32"), y=np.arange(80) % 3)
    net, data = "two_layers.py:TwoLayers(width=12)", "Npz(path='small.npz')"
    code, out, err = command(
        "audit", "--data", data, "--epochs", "1", "--net", net, "--guard", GUARD, "--attack", "nearest.py:Nearest()",
        "--images", "16", "--aux-samples", "20", "--json", "--cluster", "processes", "--jobs", "2",
        "--threads", "1", "--out", "shared",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row["guard"], row["attack"]) for row in rows] == [
        ("none", "nearest.py:Nearest()"),
        (GUARD, "nearest.py:Nearest()"),
    ]
    assert GUARD in Path("shared/report.html").read_text()
    plan = read_plan(f"Plan(net={net}, data={data}, epochs=1, aux_samples=20)")
    wanted = AuditSpec(plan, guards=[spec(GUARD)], attacks=[spec("nearest.py:Nearest()")], images=16)
    alone = audit(wanted, plan.data.load())
    assert [row["ssim"] for row in alone.rows] == [row["ssim"] for row in rows]


def test_attack_on_a_recording(plugins, command, monkeypatch):
    assert (
        command(
            "train", *QUICK, "--guard", GUARD, "--epochs", "1", "--record", "8", "--aux-samples", "60", "--out", "a"
        )[0]
        == 0
    )
    forget(monkeypatch)
    words = ["attack", "a", "--attack", "nearest.py:Nearest()", "--images", "16", "--threads", "1", "--json"]
    code, _, err = command(*words, "--out", "b")
    assert code == 1 and "type --code sign_bit.py beside it" in err
    code, out, err = command(*words, "--out", "c", "--code", "sign_bit.py")
    assert code == 0, err
    assert [row["attack"] for row in json.loads(out)["rows"]] == ["nearest.py:Nearest()"]


def test_a_score_that_is_a_tensor_is_a_number_all_the_same(plugins, command):
    """The most natural thing to write ended in a traceback when the epoch was over."""
    text = (plugins / "large_gradients.py").read_text()
    assert "        self.score = 1.0\n" in text
    (plugins / "large_gradients.py").write_text(
        text.replace("        self.score = 1.0\n", "        self.score = norm\n")
    )
    detector = ["--client-detectors", "large_gradients.py:LargeGradients"]
    code, out, err = command("train", *QUICK, "--epochs", "1", *detector, "--out", "a", "--json")
    assert code == 0, err
    (told,) = json.loads(out)["detectors"]
    assert told["score"] > 0


def test_predict_names_the_file_too(plugins, command, monkeypatch):
    assert command("train", *QUICK, "--guard", GUARD, "--epochs", "1", "--out", "a")[0] == 0
    forget(monkeypatch)
    assert command("predict", "a", "--limit", "8", "--threads", "1")[0] == 1
    assert command("predict", "a", "--limit", "8", "--threads", "1", "--code", "sign_bit.py")[0] == 0


@pytest.mark.campaign
def test_compare_names_rules_by_their_file(plugins, command):
    code, out, err = command(
        "compare", *QUICK, "--epochs", "1", "--clients", "2", "--rounds", "SplitFed()", "--with", "rule=FedAvg",
        "--with", "rule=half_way.py:HalfWay(share={0.5,1.0})", "--out", "a", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert "half_way.py:HalfWay(share=0.5)" in out


# --------------------------------------------------------------------------- plug-ins that break their contract
NOISE = "z = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(next(COUNT)))"
BROKEN = {
    "out_shape promises": ("return (torch.Size(shape).numel(),)", "return shape"),
    "the server's half (lift) gives the body": ("def lift(", "def lift_it("),
    "its text makes it again": ("repr=False)", "repr=True)"),
    "a replayed step is the same step": ("codes, scale =", f"{NOISE}\n        codes, scale ="),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_guard_that_breaks_its_contract_is_refused_before_training(law, plugins, command):
    old, new = BROKEN[law]
    text = (plugins / "sign_bit.py").read_text()
    assert old in text
    text = text.replace(old, new).replace(
        "\n\n\n@dataclass", "\nimport itertools\nCOUNT = itertools.count(1)\n\n@dataclass", 1
    )
    (plugins / "sign_bit.py").write_text(text)
    code, _, err = command("train", *QUICK, "--guard", "sign_bit.py:SignBit()", "--out", "a")
    assert code == 1 and "breaks a law of guards" in err and law in err and not Path("a").exists(), err
    code, out, _ = command("check", "sign_bit.py:SignBit()", "--json")
    told = json.loads(out)
    assert code == 1 and [one["law"] for one in told["laws"] if one["holds"] is False and law in one["law"]]


@pytest.mark.parametrize(
    ("file", "old", "new", "option", "words"),
    [
        ("half_way.py", 'f"net.{name}"', 'f"net.x{name}"', "--rule", "is gone: return every name"),
        ("in_order.py", "* clients // len(samples)", "* 0", "--partition", "one of 2 clients has nothing"),
        ("two_layers.py", "nn.Linear(MIDDLE, classes)", "nn.Linear(MIDDLE, 7)", "--net", "10 classes need (10,)"),
        (
            "two_layers.py",
            "nn.Linear(self.width, MIDDLE)",
            "nn.Linear(3, MIDDLE)",
            "--net",
            "the body cannot read (8,)",
        ),
    ],
)
def test_others_that_break_theirs_too(file, old, new, option, words, plugins, command):
    text = (plugins / file).read_text()
    assert old in text
    (plugins / file).write_text(text.replace(old, new))
    name = {"half_way.py": "HalfWay", "in_order.py": "InOrder", "two_layers.py": "TwoLayers"}[file]
    more = ["--rounds", "SplitFed()"] if option == "--rule" else []
    code, _, err = command("train", *QUICK, "--clients", "2", option, f"{file}:{name}()", *more, "--out", "a")
    assert code == 1 and words in err and "Traceback" not in err, err


def test_an_attack_with_an_unknown_need_is_refused_before_training(plugins, command):
    (plugins / "nearest.py").write_text(
        (plugins / "nearest.py").read_text().replace('("aux",', '("everything", "aux",')
    )
    code, _, err = command("audit", *QUICK, "--aux-samples", "60", "--attack", "nearest.py:Nearest()", "--out", "a")
    assert code == 1 and "needs has everything" in err and not Path("a").exists()


# --------------------------------------------------------------------------- check
@pytest.mark.parametrize("kind", TYPED)
def test_all_laws_hold_for_them(kind, plugins, command):
    file, text = TYPED[kind]
    code, out, err = command("check", f"{file}:{text}")
    assert code == 0, out + err
    assert out.splitlines()[0] == f"{file}:{text}" and out.splitlines()[-1] == "all laws hold" and "BROKEN" not in out


def test_a_plan_from_a_folder_is_the_plan_that_was_given(plugins):
    plan = read_plan(f"Plan(guard={GUARD}, data=Digits(limit=200), epochs=0)")
    start.train(plan, "a")
    assert load_plan(Path("a")).guard == spec(GUARD) == load_plan(Path("a"), plan).guard
    with pytest.raises(ValueError, match="started with another plan"):
        load_plan(Path("a"), read_plan(f"Plan(guard={GUARD}, data=Digits(limit=200), epochs=1)"))
