"""Rollback: the transform, the majority, and a poisoned turn that leaves no trace."""

import numpy as np
import pytest
import torch
from scipy.fft import dct
from toys import TASK, samples, tiny_plan

from cutlayer.data.base import Parts
from cutlayer.data.poisons import BadNets
from cutlayer.engines.local.run import LocalRun
from cutlayer.rules import FedAvg, Rollback, Update
from cutlayer.rules.rollback import low_frequencies
from cutlayer.training.plan.schedule import SplitFed


@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_the_transform_is_scipys(size):
    rows = torch.randn(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    whole = dct(rows.numpy(), norm="ortho", axis=1)
    np.testing.assert_allclose(low_frequencies(rows, 0.999), whole, atol=1e-12)
    np.testing.assert_allclose(low_frequencies(rows, 0.25), whole[:, : max(1, -(-size // 4))], atol=1e-12)


def around(center, count, seed=0, spread=0.01):
    draw = torch.Generator().manual_seed(seed)
    return [Update({"net.w": center + spread * torch.randn(40, generator=draw)}, 5) for _ in range(count)]


def test_those_outside_the_majority_leave_no_trace():
    start = {"net.w": torch.linspace(-1, 1, 40)}
    honest, other = around(start["net.w"] + 0.1, 5), around(start["net.w"] - 2.0, 2, seed=1)
    rule = Rollback()
    kept = rule.benign(start, [*honest, *other])
    assert not kept[5:].any() and kept[:5].any()
    merged = rule(start, [*honest, *other])["net.w"]
    means = torch.stack([one.state["net.w"] for one, stays in zip(honest, kept[:5], strict=True) if stays]).mean(0)
    torch.testing.assert_close(merged, means)
    swapped = rule(start, [*other, *reversed(honest)])["net.w"]
    torch.testing.assert_close(swapped, merged)


def test_a_move_of_the_same_length_elsewhere_is_seen_by_its_frequencies():
    start = {"net.w": torch.zeros(40)}
    slow = torch.cos(torch.arange(40) * 0.1)
    updates = [*around(slow, 4), Update({"net.w": -slow}, 5)]
    assert Rollback().benign(start, updates)[4:].tolist() == [False]


def test_updates_that_are_alike_all_stay():
    start = {"net.w": torch.ones(6)}
    updates = [Update({"net.w": torch.full((6,), 2.0)}, 1)] * 4
    assert Rollback().benign(start, updates).all()


def test_a_backdoor_is_weaker_than_with_a_mean():
    parts = Parts(samples(240, 1), samples(12, 2), samples(60, 3), samples(30, 4))
    found = {}
    for rule in (FedAvg(), Rollback()):
        poison = BadNets(clients=1, share=0.9, target=1)
        plan = tiny_plan(
            clients=5, batch_size=12, epochs=12, local_steps=0, rounds=SplitFed(), rule=rule, poison=poison
        )
        run = LocalRun(plan, parts, classes=TASK.classes)
        run.train()
        found[rule] = run.evaluate(poison.attacked(parts.test))[0], run.evaluate(parts.test)[0]
    assert found[Rollback()][0] < found[FedAvg()][0] - 0.2
    assert found[Rollback()][1] >= found[FedAvg()][1] - 0.1


def test_refusals():
    with pytest.raises(ValueError, match="share is a number in"):
        Rollback(share=0.0)
    assert Rollback().least == 3
