"""A run on disk: what is written, that it resumes, and that nothing half-written or damaged is trusted."""

import json
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from cutlayer.core.errors import Interrupted, NonFinite
from cutlayer.data.digits import Digits
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.guards import WCC, LightSplit
from cutlayer.nets.simple_cnn import SimpleCNN
from cutlayer.training import checkpoint
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan

SMALL = Plan(data=Digits(limit=200), epochs=2, batch_size=50, guard=LightSplit(ratio=8), clients=2, private_seed=5)


def without_times(folder):
    return [{**json.loads(line), "seconds": 0} for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, start.train(SMALL, folder)


def test_clients_without_a_batch_of_so_many_pieces_still_finish(tmp_path):
    """A batch of the few samples there are has fewer pieces, and so has what is said of memory."""
    few = replace(SMALL, data=Digits(limit=20), clients=4, batch_size=16, micro_batches=3, epochs=1, val_share=0.0)
    result = start.train(few, tmp_path / "few")
    assert result["steps"] == 4 and result["client_memory"]["active"]["activations"] > 0


def test_a_run_leaves_its_files(whole):
    folder, result = whole
    assert {file.name for file in folder.iterdir()} == {
        "plan.json", "private.json", "history.jsonl", "last.safetensors", "best.safetensors", "result.json",
        "model.safetensors",
    }  # fmt: skip
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    assert len(without_times(folder)) == 2
    assert stat.S_IMODE((folder / "private.json").stat().st_mode) == 0o600
    assert json.loads((folder / "private.json").read_text()) == {"private_seed": 5}
    assert "private_seed" not in (folder / "plan.json").read_text()


def test_an_interrupted_run_resumes_to_the_same_files(whole, tmp_path):
    folder = tmp_path / "broken"
    asked = iter([False, False, False, True])
    with pytest.raises(Interrupted, match="--resume"):
        start.train(SMALL, folder, follow=start.Following(stop=lambda: next(asked)))
    plan = load_plan(folder)
    assert plan == SMALL and plan.private_seed == 5
    result = start.train(plan, folder, resume=True)
    assert result["accuracy"] == whole[1]["accuracy"] and result["ledger"] == whole[1]["ledger"]
    assert without_times(folder) == without_times(whole[0])
    ours, theirs = load_file(folder / "last.safetensors"), load_file(whole[0] / "last.safetensors")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_that_loses_its_numbers_keeps_the_last_good_checkpoint(tmp_path):
    from dataclasses import replace

    plan = replace(
        SMALL, net=SimpleCNN(depth=2), epochs=40, clients=1, guard=WCC(weight=0.1), client_optimizer=SGD(lr=5)
    )
    with pytest.raises(NonFinite, match="WCC did it"):
        start.train(plan, tmp_path / "lost")
    tensors, facts = checkpoint.load(tmp_path / "lost" / "last.safetensors")
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())
    assert not (tmp_path / "lost" / "result.json").exists()
    assert facts["step"] >= 0


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:100], lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], lambda b: b"junk"],
    ids=["cut", "flipped", "foreign"],
)
def test_a_damaged_checkpoint_is_refused(whole, tmp_path, damage):
    path = tmp_path / "last.safetensors"
    path.write_bytes(damage((whole[0] / "last.safetensors").read_bytes()))
    with pytest.raises(checkpoint.CorruptCheckpoint, match="damaged"):
        checkpoint.load(path)


def test_resuming_what_is_not_a_run_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"not a training run: .* Name a folder that `cutlayer train`"):
        load_plan(tmp_path)


def test_two_runs_without_a_fixed_secret_have_different_heads(tmp_path):
    from dataclasses import replace

    heads = []
    for name in "ab":
        start.train(replace(SMALL, epochs=0, private_seed=None), tmp_path / name)
        heads.append(load_file(tmp_path / name / "last.safetensors"))
    assert torch.equal(heads[0]["server/net.body.0.weight"], heads[1]["server/net.body.0.weight"])
    assert not torch.equal(heads[0]["client0/net.head.0.weight"], heads[1]["client0/net.head.0.weight"])
