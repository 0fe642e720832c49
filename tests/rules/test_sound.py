"""Which updates may be merged: one that is not finite must not get near a sum."""

import pytest
import torch

from cutlayer.rules import FedAvg, Update, sound

NOW = {
    "net.w": torch.zeros(2, 3),
    "stat.count": torch.tensor(4),
    "rule.momentum.w": torch.ones(2, 3),
    "control.w": torch.zeros(2, 3),
}


def brought(**changes):
    state = {"net.w": torch.ones(2, 3), "stat.count": torch.tensor(5)}
    return {**state, **{name.replace("_", ".", 1): tensor for name, tensor in changes.items()}}


def without(name):
    return {key: tensor for key, tensor in brought().items() if key != name}


@pytest.mark.parametrize(
    "state",
    [
        brought(),
        brought(control_w=torch.ones(2, 3)),
        brought(**{"optimizer_0.momentum": torch.ones(7)}),
    ],
)
def test_what_fits_is_kept(state):
    kept, rejected = sound(NOW, [Update(state, 3)])
    assert kept[0].state is state and rejected == {}


@pytest.mark.parametrize(
    ("state", "samples", "why"),
    [
        (brought(net_w=torch.full((2, 3), float("nan"))), 3, "net.w has numbers that are not finite"),
        (
            brought(net_w=torch.tensor([[0.0, 0, 0], [0, 0, float("-inf")]])),
            3,
            "net.w has numbers that are not finite",
        ),
        (brought(control_w=torch.full((2, 3), float("inf"))), 3, "control.w has numbers that are not finite"),
        (brought(net_w=torch.ones(3, 2)), 3, "net.w has shape (3, 2), not (2, 3)"),
        (brought(net_w=torch.ones(1, 3)), 3, "net.w has shape (1, 3), not (2, 3)"),
        (brought(control_w=torch.ones(6)), 3, "control.w has shape (6,), not (2, 3)"),
        (brought(net_w=torch.ones(2, 3).double()), 3, "net.w is torch.float64, not torch.float32"),
        (brought(stat_count=torch.tensor(5.0)), 3, "stat.count is torch.float32, not torch.int64"),
        (without("stat.count"), 3, "stat.count is missing"),
        (brought(net_v=torch.ones(2)), 3, "net.v is unknown here"),
        (brought(control_v=torch.ones(2)), 3, "control.v is unknown here"),
        (brought(**{"rule_momentum.w": torch.ones(2, 3)}), 3, "rule.momentum.w is unknown here"),
        (brought(), 0, "it says that it learnt from 0 samples"),
        (brought(), -5, "it says that it learnt from -5 samples"),
        (brought(), 2.5, "it says that it learnt from 2.5 samples"),
    ],
)
def test_what_does_not_is_turned_down_with_the_reason(state, samples, why):
    good = Update(brought(), 3)
    kept, rejected = sound(NOW, [good, Update(state, samples), good])
    assert rejected == {1: why}
    assert len(kept) == 2


def test_the_round_goes_on_without_it():
    broken = Update(brought(net_w=torch.full((2, 3), float("nan"))), 1000)
    kept, _ = sound(NOW, [broken, Update(brought(), 3)])
    merged = FedAvg()(NOW, kept)
    assert torch.equal(merged["net.w"], torch.ones(2, 3)) and int(merged["stat.count"]) == 5


def test_if_none_is_left_the_state_stays():
    broken = Update(brought(net_w=torch.full((2, 3), float("nan"))), 10)
    kept, rejected = sound(NOW, [broken, broken])
    assert kept == [] and rejected.keys() == {0, 1}
    assert FedAvg()(NOW, kept) == NOW


def test_before_the_first_round_only_numbers_are_looked_at():
    kept, rejected = sound({}, [Update(brought(), 3), Update({"net.w": torch.tensor(float("nan"))}, 3)])
    assert len(kept) == 1 and list(rejected) == [1]
