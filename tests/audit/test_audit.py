"""The audit's honesty: controls, floors, constant pictures, and what the row of a guard is."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import TASK, samples, tiny_plan

from cutlayer.attacks import Attack, Attacker, Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.verdicts import strongest
from cutlayer.audit.victim import WhiteBox
from cutlayer.data.base import Loaded
from cutlayer.guards import WCC, Chain, LightSplit

FIELDS = {
    "guard", "attack", "knows", "seed", "n", "accuracy", "ssim", "psnr", "mse", "ncc", "lpips", "metric", "value",
    "chance", "bytes_up", "bytes_down", "seconds", "valid", "why_invalid",
}  # fmt: skip
GUARD = Chain(LightSplit(ratio=4), WCC(weight=0.01))
READER = Decoder(steps=120, width=16, hidden=64)


@dataclass(frozen=True, repr=False)
class Same(Attack):
    """Returns one picture for everything."""

    needs: ClassVar[tuple[str, ...]] = ("aux",)

    def attacker(self, knowledge, seed):
        class Shrug(Attacker):
            def reconstruct(self, messages):
                return knowledge.aux.mean(0).expand(sum(len(m["z"]) for m in messages), -1, -1, -1)

        return Shrug()


@dataclass(frozen=True, repr=False)
class Noise(Attack):
    """Returns noise."""

    def attacker(self, knowledge, seed):
        class Shrug(Attacker):
            def reconstruct(self, messages):
                return torch.rand(sum(len(m["z"]) for m in messages), *TASK.shape)

        return Shrug()


@pytest.fixture(scope="module")
def result():
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=16)
    return audit(AuditSpec(plan, [GUARD], [READER, Same(), Noise()], images=40), loaded)


def test_rows_have_the_promised_fields_and_the_control_is_there(result):
    assert len(result.rows) == 6
    assert {row["guard"] for row in result.rows} == {"none", repr(GUARD)}
    for row in result.rows:
        assert row.keys() >= FIELDS
        assert row["valid"] == (row["why_invalid"] is None)
    assert set(result.floors) >= {"blank", "mean", "class_mean", "unaligned"}
    assert result.floors["mean"]["ssim"] is not None
    data = result.as_dict()
    assert data["schema"] == 2 and data["plan"] == repr(result.plan)


def test_an_attack_that_fails_its_control_makes_every_row_of_it_invalid(result):
    by = {(row["guard"], row["attack"]): row for row in result.rows}
    assert by["none", repr(READER)]["valid"] and by[repr(GUARD), repr(READER)]["valid"]
    for attack in (Same(), Noise()):
        for guard in ("none", repr(GUARD)):
            assert not by[guard, repr(attack)]["valid"]
    assert "same picture for every image" in by["none", repr(Same())]["why_invalid"]
    assert "below its bar" in by["none", repr(Noise())]["why_invalid"]


def test_the_attackers_data_is_disjoint_from_the_private_data(result):
    assert result.plan.aux_samples == 72
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    twice = Loaded(
        type(loaded.train)(loaded.train.x[:4].repeat(40, 1, 1, 1), loaded.train.y[:4].repeat(40)),
        loaded.test,
        loaded.classes,
    )
    with pytest.raises(ValueError, match="auxiliary images are also private"):
        audit(AuditSpec(tiny_plan(epochs=1, batch_size=16), attacks=[READER], images=8), twice)


def test_a_guard_that_does_not_fit_is_refused_before_training():
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    with pytest.raises(ValueError, match="1 to 100 here"):
        audit(AuditSpec(tiny_plan(epochs=1000), [LightSplit(ratio=200)], [READER]), loaded)


def test_the_row_of_a_guard_is_its_strongest_valid_attacker():
    rows = [
        {"guard": "g", "value": 0.9, "valid": False},
        {"guard": "g", "value": 0.5, "valid": True},
        {"guard": "g", "value": 0.7, "valid": True},
    ]
    assert strongest(rows, "g")["value"] == 0.7
    assert strongest(rows, "h") is None


def test_the_white_box_holds_no_tail_and_no_data(result):
    from toys import split_and_whole

    client, *_ = split_and_whole(tiny_plan())
    box = WhiteBox(client.split, 8)
    assert not list(box.split.tail.parameters())
    stats = [m.running_mean.clone() for m in box.split.modules() if hasattr(m, "running_mean")]
    box(samples(16).x, samples(16).y)
    assert all(
        torch.equal(a, m.running_mean)
        for a, m in zip(stats, [m for m in box.split.modules() if hasattr(m, "running_mean")], strict=True)
    )
