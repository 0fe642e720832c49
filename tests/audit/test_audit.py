"""The audit's honesty: controls, floors, constant pictures, and what the row of a guard is."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import TASK, samples, tiny_plan

from cutlayer.attacks import Attack, Attacker, Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.verdicts import ceiling, leak_share, strongest, verdict
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
    assert data["schema"] == 1 and data["plan"] == repr(result.plan)


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


def test_who_was_told_the_key_is_a_limit_and_no_threat():
    told = {"guard": "g", "value": 0.9, "ssim": 0.9, "valid": True, "ceiling": True}
    assert strongest([told], "g") == told, "where there is no other, it is what we know"
    guessed = {**told, "value": 0.4, "ssim": 0.4, "ceiling": False}
    assert strongest([told, guessed], "g") == guessed and ceiling([told, guessed], "g") == told
    assert ceiling([guessed], "g") is None
    cost = {"why_invalid": None, "accuracy": 0.9, "bytes_up": 8.0, "bytes_down": 8.0, "bytes_weights": 0.0}
    rows = [{**row, **cost} for row in (told, guessed, {**guessed, "guard": "none", "ssim": 0.95, "value": 0.95})]
    assert "Who knew the key would reach 0.90." in verdict(rows, {"mean": {"ssim": 0.1}}, "g").sentence


def test_a_guard_that_loses_the_task_is_not_praised_for_hiding():
    cost = {"valid": True, "why_invalid": None, "bytes_up": 8.0, "bytes_down": 8.0, "bytes_weights": 0.0}
    rows = [
        {**cost, "guard": "none", "ssim": 0.9, "value": 0.9, "accuracy": 0.9},
        {**cost, "guard": "g", "ssim": 0.1, "value": 0.1, "accuracy": 0.3},
    ]
    assert verdict(rows, {"mean": {"ssim": 0.1}}, "g").grade == "task lost"


@pytest.mark.parametrize(
    ("ssim", "grade"),
    [(0.95, "does not protect"), (0.6, "weakens"), (0.45, "blunts"), (0.31, "hides"), (0.1, "hides")],
)
def test_verdicts(ssim, grade):
    base = {
        "valid": True,
        "why_invalid": None,
        "accuracy": 0.9,
        "bytes_up": 8.0,
        "bytes_down": 8.0,
        "bytes_weights": 0.0,
    }
    rows = [
        {**base, "guard": "none", "ssim": 0.9, "value": 0.9},
        {**base, "guard": "g", "ssim": ssim, "value": ssim, "bytes_up": 4.0},
    ]
    judged = verdict(rows, {"mean": {"ssim": 0.3}}, "g")
    assert judged.grade == grade
    assert f"{100 * leak_share(ssim, 0.9, 0.3):.0f} %" in judged.sentence and "1.3x fewer bytes" in judged.sentence


def test_nothing_is_said_of_a_guard_without_a_valid_attack():
    rows = [{"guard": g, "valid": False, "why_invalid": "it failed", "value": 0.1} for g in ("none", "g")]
    assert verdict(rows, {"mean": {"ssim": 0.3}}, "g").grade == "unknown"


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


def two_rows(unguarded, guarded):
    base = {
        "valid": True,
        "why_invalid": None,
        "accuracy": 0.9,
        "bytes_up": 8.0,
        "bytes_down": 8.0,
        "bytes_weights": 0.0,
    }
    return [{**base, "guard": g, "ssim": s, "value": s} for g, s in (("none", unguarded), ("g", guarded))]


def test_a_cut_that_hardly_leaks_gives_no_verdict():
    """Otherwise a share of nearly nothing would read as protection."""
    judged = verdict(two_rows(0.35, 0.34), {"class_mean": {"ssim": 0.34}, "unaligned": {"ssim": 0.39}}, "g")
    assert judged.grade == "unknown" and "leaks too little" in judged.sentence


def test_the_unaligned_decoder_is_no_floor():
    low = verdict(two_rows(0.9, 0.6), {"class_mean": {"ssim": 0.3}, "unaligned": {"ssim": 0.1}}, "g").leak
    high = verdict(two_rows(0.9, 0.6), {"class_mean": {"ssim": 0.3}, "unaligned": {"ssim": 0.55}}, "g").leak
    assert low == high == pytest.approx(0.5)
