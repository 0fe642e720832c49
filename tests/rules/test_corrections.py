"""FedProx and SCAFFOLD: what their clients do, on problems whose answer is known."""

import pytest
import torch
from torch import nn

from cutlayer.rules import FedAvg, FedProx, Scaffold, Update

# Two clients that disagree on where and how steeply: ½ a (w − b)². Σ a (w − b) = 0 at w = (1·0 + 4·1) / 5.
CURVATURES, TARGETS, OPTIMUM = (1.0, 4.0), (0.0, 1.0), 0.8


def parameters(value):
    return {"w": nn.Parameter(value.clone())}


def turn(correction, order, curvature, target, steps, lr, **sgd):
    mine = parameters(order["net.w"])
    optimizer = torch.optim.SGD(mine.values(), lr=lr, **sgd)
    if correction:
        correction.start(mine, order)
    for _ in range(steps):
        optimizer.zero_grad()
        (curvature * (mine["w"] - target).square().sum() / 2).backward()
        if correction:
            correction.adjust(mine)
        optimizer.step()
    brought = correction.brought(mine, steps, lr) if correction else {}
    return Update({"net.w": mine["w"].detach(), **brought}, 10)


def settle(rule, steps=10, lr=0.1, turns=300, corrections=None, asked=lambda turn: (0, 1)):
    now = {"net.w": torch.tensor([3.0], dtype=torch.float64)}
    corrections = corrections or [rule.correction() for _ in CURVATURES]
    for number in range(turns):
        now = rule(
            now,
            [turn(corrections[i], now, CURVATURES[i], TARGETS[i], steps, lr) for i in asked(number)],
        )
    return float(now["net.w"])


def test_averaging_many_local_steps_lands_off_the_optimum():
    assert settle(FedAvg(), steps=1) == pytest.approx(OPTIMUM, abs=1e-9)
    assert abs(settle(FedAvg()) - OPTIMUM) > 0.1


def test_scaffold_lands_on_it():
    assert settle(Scaffold()) == pytest.approx(OPTIMUM, abs=1e-9)


@pytest.mark.campaign
def test_scaffold_lands_on_it_when_a_round_hears_one_client_only():
    found = settle(Scaffold(share=0.5), steps=5, lr=0.05, turns=3000, asked=lambda number: (number % 2,))
    assert found == pytest.approx(OPTIMUM, abs=1e-6)


def test_the_servers_variate_is_the_mean_of_the_clients():
    rule, now = Scaffold(share=0.5), {"net.w": torch.tensor([3.0, -1.0], dtype=torch.float64)}
    corrections = [rule.correction() for _ in range(2)]
    for number in range(7):
        i = number % 2
        now = rule(now, [turn(corrections[i], now, CURVATURES[i], TARGETS[i], 4, 0.1)])
        own = [c.tensors().get("own.w", torch.zeros(2, dtype=torch.float64)) for c in corrections]
        torch.testing.assert_close(now["control.w"], sum(own) / 2)


def test_a_clients_variate_is_its_mean_gradient():
    """Under plain SGD, cᵢ − c + (x − y)/(K lr) is the mean of the gradients that it saw, uncorrected."""
    correction, seen = Scaffold().correction(), []
    correction.load({"own.w": torch.tensor([0.5, -2.0])})
    order = {"net.w": torch.tensor([1.0, 2.0]), "control.w": torch.tensor([0.3, 0.1])}
    mine = parameters(order["net.w"])
    correction.start(mine, order)
    for _ in range(6):
        seen.append(3 * (mine["w"].detach() - 0.5))
        mine["w"].grad = seen[-1].clone()
        correction.adjust(mine)
        torch.testing.assert_close(mine["w"].grad, seen[-1] + order["control.w"] - torch.tensor([0.5, -2.0]))
        mine["w"].data -= 0.05 * mine["w"].grad
    brought = correction.brought(mine, 6, 0.05)
    mean = sum(seen) / 6
    torch.testing.assert_close(correction.tensors()["own.w"], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(brought["control.w"], mean - torch.tensor([0.5, -2.0]), rtol=1e-4, atol=1e-5)


def test_a_turn_that_lost_its_numbers_does_not_spoil_the_client():
    correction = Scaffold().correction()
    correction.load({"own.w": torch.ones(2)})
    mine = parameters(torch.zeros(2))
    correction.start(mine, {"net.w": torch.zeros(2)})
    mine["w"].data.fill_(float("nan"))
    assert correction.brought(mine, 3, 0.1) == {}
    assert torch.equal(correction.tensors()["own.w"], torch.ones(2))


def test_a_turn_without_steps_brings_nothing():
    correction, mine = Scaffold().correction(), parameters(torch.zeros(2))
    correction.start(mine, {"net.w": torch.zeros(2)})
    assert correction.brought(mine, 0, 0.1) == {}


def test_each_client_has_a_memory_of_its_own():
    rule = Scaffold()
    one, other = rule.correction(), rule.correction()
    one.load({"own.w": torch.ones(2)})
    assert other.tensors() == {} and one.tensors().keys() == {"own.w"}


def test_a_client_that_brings_no_variate_counts_as_unchanged():
    now = {"net.w": torch.zeros(2), "control.w": torch.tensor([1.0, 2.0])}
    came = [
        Update({"net.w": torch.ones(2), "control.w": torch.tensor([4.0, 0.0])}, 5),
        Update({"net.w": torch.ones(2)}, 5),
    ]
    assert torch.equal(Scaffold()(now, came)["control.w"], torch.tensor([3.0, 2.0]))
    assert torch.equal(Scaffold()(now, came[1:])["control.w"], now["control.w"])


def test_fedprox_is_the_gradient_of_its_penalty():
    correction, mine = FedProx(mu=0.3).correction(), parameters(torch.tensor([1.0, 2.0]))
    correction.start(mine, {})
    mine["w"].data += torch.tensor([0.5, -1.0])
    w = mine["w"].detach().clone().requires_grad_()
    (0.3 / 2 * (w - torch.tensor([1.0, 2.0])).square().sum()).backward()
    mine["w"].grad = torch.ones(2)
    correction.adjust(mine)
    torch.testing.assert_close(mine["w"].grad, 1 + w.grad)
    assert correction.brought(mine, 3, 0.1) == {} and correction.tensors() == {}


def test_fedprox_pulls_clients_back_the_more_the_larger_mu():
    order = {"net.w": torch.tensor([3.0], dtype=torch.float64)}
    moved = [
        float(3 - turn(rule.correction(), order, 1.0, 0.0, 20, 0.1).state["net.w"])
        for rule in (FedAvg(), FedProx(mu=0.1), FedProx(mu=1.0), FedProx(mu=10.0 / 2))
    ]
    assert moved == sorted(moved, reverse=True) and moved[-1] < 0.25 * moved[0]


@pytest.mark.campaign
def test_fedprox_drifts_less_than_averaging():
    assert abs(settle(FedProx(mu=2.0), turns=600) - OPTIMUM) < 0.7 * abs(settle(FedAvg()) - OPTIMUM)


@pytest.mark.parametrize("rule", [FedProx(mu=0.5), Scaffold()], ids=repr)
def test_frozen_parameters_are_left_alone_and_untouched_ones_count_as_zero(rule):
    correction = rule.correction()
    correction.load({"own.used": torch.ones(2), "own.idle": torch.ones(2)})
    mine = {name: nn.Parameter(torch.zeros(2), requires_grad=name != "frozen") for name in ("used", "idle", "frozen")}
    correction.start(mine, {f"net.{name}": torch.zeros(2) for name in mine})
    mine["used"].grad = torch.zeros(2)
    mine["used"].data += 1
    mine["idle"].data += 1
    correction.adjust(mine)
    assert mine["frozen"].grad is None
    assert torch.equal(mine["used"].grad, mine["idle"].grad) and mine["used"].grad.abs().min() > 0
    assert not any("frozen" in name for name in correction.brought(mine, 1, 0.1))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedProx(mu=0), "mu is a number above 0; FedAvg is this rule without it"),
        (lambda: FedProx(mu=-1.0), "mu is a number above 0"),
        (lambda: FedProx(lr=0.0), "lr is a number above 0"),
        (lambda: Scaffold(lr=0.0), "lr is a number above 0"),
        (lambda: Scaffold(share=0.0), r"share is that of the clients in a round, in \(0, 1\]"),
        (lambda: Scaffold(share=2), "share is that of the clients"),
    ],
)
def test_impossible_constants_are_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()
