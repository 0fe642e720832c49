"""FedAvg, FedAvgM and DiLoCo against other ways of writing them."""

import pytest
import torch
from torch import nn

from cutlayer.rules import DiLoCo, FedAvg, FedAvgM, Update


def draws(count, seed=0, shape=(4, 3)):
    draw = torch.Generator().manual_seed(seed)
    return [{"net.w": torch.randn(shape, generator=draw, dtype=torch.float64)} for _ in range(count)]


def test_fedavg_is_the_weighted_mean():
    x, one, other = draws(3)
    merged = FedAvg()(x, [Update(one, 30), Update(other, 10)])
    torch.testing.assert_close(merged["net.w"], 0.75 * one["net.w"] + 0.25 * other["net.w"])


def test_a_single_client_is_taken_over_exactly():
    x, one = draws(2)
    x, one = {"net.w": x["net.w"].float()}, {"net.w": one["net.w"].float()}
    assert torch.equal(FedAvg()(x, [Update(one, 7)])["net.w"], one["net.w"])


def test_a_server_rate_below_one_goes_a_part_of_the_way():
    x, one = draws(2)
    merged = FedAvg(lr=0.25)(x, [Update(one, 1)])
    torch.testing.assert_close(merged["net.w"], 0.75 * x["net.w"] + 0.25 * one["net.w"])


def test_without_momentum_at_rate_one_fedavgm_is_fedavg():
    now_m = now = draws(1)[0]
    for turn in range(4):
        came = [Update(state, 3 + place) for place, state in enumerate(draws(3, seed=turn + 1))]
        now, now_m = FedAvg()(now, came), FedAvgM(lr=1.0, momentum=0.0)(now_m, came)
        assert now.keys() == now_m.keys() and torch.equal(now["net.w"], now_m["net.w"])


@pytest.mark.parametrize(
    ("rule", "nesterov"), [(FedAvgM(lr=0.3, momentum=0.8), False), (DiLoCo(lr=0.7, momentum=0.9), True)]
)
def test_momentum_is_that_of_torch_on_g(rule, nesterov):
    now = draws(1)[0]
    theirs = nn.Parameter(now["net.w"].clone())
    sgd = torch.optim.SGD([theirs], lr=rule.lr, momentum=rule.momentum, nesterov=nesterov)
    for turn in range(5):
        came = [Update(state, 1 + place) for place, state in enumerate(draws(2, seed=turn + 1))]
        theirs.grad = theirs.detach() - (came[0].state["net.w"] + 2 * came[1].state["net.w"]) / 3
        sgd.step()
        now = rule(now, came)
        torch.testing.assert_close(now["net.w"], theirs.detach())


def test_diloco_is_nesterov_and_not_heavy_ball():
    """x − η (β y₋₁ + g), as one finds it written, would be FedAvgM."""
    x, one = draws(2)
    first, also = DiLoCo(lr=0.5)(x, [Update(one, 1)]), FedAvgM(lr=0.5)(x, [Update(one, 1)])
    torch.testing.assert_close(first["net.w"] - x["net.w"], 1.9 * (also["net.w"] - x["net.w"]))


def test_one_full_batch_step_each_is_a_centralised_step():
    torch.manual_seed(0)
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 3, (30,))
    whole = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    shards = [slice(0, 4), slice(4, 15), slice(15, 30)]

    def step(model, rows):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {f"net.{name}": p.detach().clone() for name, p in model.named_parameters()}

    def load(model, state):
        model.load_state_dict({name.removeprefix("net."): t for name, t in state.items()})
        return model

    central = {f"net.{name}": p.detach().clone() for name, p in whole.named_parameters()}
    now = dict(central)
    for _ in range(5):
        came = [Update(step(load(whole, now), rows), rows.stop - rows.start) for rows in shards]
        now = FedAvg()(now, came)
        central = step(load(whole, central), slice(0, 30))
        for name, tensor in central.items():
            torch.testing.assert_close(now[name], tensor, rtol=0, atol=1e-13, msg=name)


def test_small_moves_of_large_weights_are_not_lost_in_the_sum():
    """A mean of 1 000 float32 weights near 4 096 is off by rounding; a sum of differences in double is not."""
    x = {"net.w": torch.full((3,), 4096.0)}
    moved = {"net.w": x["net.w"] + torch.tensor([0.0, 2.0**-11, -(2.0**-11)])}
    merged = FedAvg()(x, [Update(moved, 7)] * 1000)["net.w"]
    assert torch.equal(merged, moved["net.w"])


@pytest.mark.parametrize("rule", [FedAvg, FedAvgM, DiLoCo])
@pytest.mark.parametrize("lr", [0, -1, float("nan"), float("inf"), "fast"])
def test_impossible_rates_are_refused(rule, lr):
    with pytest.raises(ValueError, match=rf"{rule.__name__}: lr is a number above 0"):
        rule(lr=lr)


@pytest.mark.parametrize("rule", [FedAvgM, DiLoCo])
@pytest.mark.parametrize("momentum", [1, 1.5, -0.1])
def test_impossible_momentum_is_refused(rule, momentum):
    with pytest.raises(ValueError, match=r"momentum is a number in \[0, 1\)"):
        rule(momentum=momentum)
