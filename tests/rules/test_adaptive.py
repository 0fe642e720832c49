"""FedAdagrad, FedAdam and FedYogi against Alg. 2 of Reddi et al. written once more, in numpy and on Δ = −g."""

import numpy as np
import pytest
import torch

from cutlayer.rules import FedAdagrad, FedAdam, FedYogi, Update


def reference(kind, x, deltas, eta, beta1, beta2, tau):
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for delta in deltas(x):
        m = beta1 * m + (1 - beta1) * delta
        if kind is FedAdagrad:
            v = v + delta**2
        elif kind is FedAdam:
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            v = v - (1 - beta2) * delta**2 * np.where(v > delta**2, 1.0, np.where(v < delta**2, -1.0, 0.0))
        x = x + eta * m / (np.sqrt(v) + tau)
        yield x


@pytest.mark.parametrize(
    "rule",
    [
        FedAdagrad(lr=0.1),
        FedAdagrad(lr=0.1, beta1=0.7),
        FedAdam(lr=0.03),
        FedAdam(lr=0.1, beta1=0.5, beta2=0.9, tau=0.1),
        FedYogi(lr=0.02),
        FedYogi(lr=0.1, beta1=0.0, beta2=0.8, tau=0.01),
    ],
    ids=repr,
)
def test_it_is_the_published_update(rule):
    draw = np.random.default_rng(0)
    start, moves = draw.normal(size=(3, 4)), [draw.normal(size=(2, 3, 4)) * 10.0**-turn for turn in range(5)]
    expected = reference(
        type(rule), start, lambda _: (move[0] / 4 + move[1] * 3 / 4 for move in moves),
        rule.lr, rule.beta1, getattr(rule, "beta2", None), rule.tau,
    )  # fmt: skip
    now = {"net.w": torch.tensor(start)}
    for move, right in zip(moves, expected, strict=True):
        came = [{"net.w": now["net.w"] + torch.tensor(part)} for part in move]
        now = rule(now, [Update(came[0], 5), Update(came[1], 15)])
        np.testing.assert_allclose(now["net.w"].numpy(), right, rtol=1e-10)


def test_a_coordinate_that_hardly_moves_is_not_blown_up():
    """τ bounds the step: without it, noise of 1e-9 would be stepped along at full size."""
    now = {"net.w": torch.zeros(2, dtype=torch.float64)}
    came = {"net.w": torch.tensor([1.0, 1e-9], dtype=torch.float64)}
    for rule in (FedAdagrad(lr=0.1), FedAdam(lr=0.1), FedYogi(lr=0.1)):
        large, small = rule(now, [Update(came, 1)])["net.w"].tolist()
        assert large > 0.05 and 0 < small < 1e-6


def test_yogi_forgets_a_large_move_more_slowly_than_adam_and_takes_one_in_as_fast():
    def second(rule, sizes):
        now = {"net.w": torch.zeros(1, dtype=torch.float64)}
        for size in sizes:
            now = rule(now, [Update({"net.w": now["net.w"] + size}, 1)])
        return float(now["rule.second.w"])

    after_large = second(FedAdam(), [10.0]), second(FedYogi(), [10.0])
    assert after_large[0] == pytest.approx(after_large[1], rel=1e-5)
    assert second(FedYogi(), [10.0] + [0.01] * 100) > 2 * second(FedAdam(), [10.0] + [0.01] * 100)


@pytest.mark.parametrize("rule", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lr": 0.0}, "lr is a number above 0"),
        ({"beta1": 1.0}, r"beta1 is a number in \[0, 1\) \(0: no momentum\)"),
        ({"tau": 0.0}, "tau is a number above 0; it keeps small moves"),
        ({"tau": -1.0}, "tau is a number above 0"),
    ],
)
def test_impossible_constants_are_refused(rule, settings, why):
    with pytest.raises(ValueError, match=why):
        rule(**settings)


@pytest.mark.parametrize("rule", [FedAdam, FedYogi])
def test_impossible_second_moments_are_refused(rule):
    with pytest.raises(ValueError, match=r"beta2 is a number in \[0, 1\)"):
        rule(beta2=1.0)


def test_constants_may_be_given_in_the_usual_order():
    assert FedAdam(0.1, 0.8, 0.7) == FedAdam(lr=0.1, beta1=0.8, beta2=0.7)
