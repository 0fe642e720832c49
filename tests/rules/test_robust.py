"""Median, TrimmedMean and Krum: what a few liars can and cannot do."""

import numpy as np
import pytest
import torch
from scipy import stats

from cutlayer.rules import FedAvg, Krum, Median, TrimmedMean, Update

HONEST = 6


def honest(count=HONEST, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            "net.w": 1 + 0.1 * torch.randn(5, 3, generator=draw, dtype=torch.float64),
            "stat.var": 1 + 0.1 * torch.rand(3, generator=draw, dtype=torch.float64),
        }
        for _ in range(count)
    ]


START = {"net.w": torch.zeros(5, 3, dtype=torch.float64), "stat.var": torch.ones(3, dtype=torch.float64)}


def liar(size):
    return {name: torch.full_like(tensor, size) for name, tensor in START.items()}


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(), TrimmedMean(share=0.2), Krum(), Krum(keep=3)], ids=repr)
@pytest.mark.parametrize("size", [1e6, -1e12, 1e30, -1e300])
def test_one_liar_does_not_bend_it_but_bends_the_mean(rule, size):
    came = [Update(state, 10) for state in honest()]
    came.insert(2, Update(liar(size), 10**6))
    for name, centre in (("net.w", 1.0), ("stat.var", 1.05)):
        assert (rule(START, came)[name] - centre).abs().max() < 0.4, name
        assert (FedAvg()(START, came)[name] - centre).abs().max() > 1e4, name


def test_two_liars_who_agree_are_found_by_krum():
    came = [Update(state, 10) for state in honest(7)] + [Update(liar(50.0), 10)] * 2
    assert (Krum(bad=2)(START, came)["net.w"] - 1).abs().max() < 0.4


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_median_is_that_of_numpy(count):
    came = honest(count)
    expected = np.median(np.stack([state["net.w"].numpy() for state in came]), axis=0)
    merged = Median()(START, [Update(state, 1) for state in came])["net.w"]
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("share", "count"), [(0.1, 10), (0.2, 10), (0.25, 8), (0.4, 5)])
def test_trimmed_mean_is_that_of_scipy(share, count):
    came = honest(count)
    expected = stats.trim_mean(np.stack([state["net.w"].numpy() for state in came]), share, axis=0)
    merged = TrimmedMean(share=share)(START, [Update(state, 1) for state in came])["net.w"]
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-12)


def test_a_small_round_is_trimmed_all_the_same():
    """A tenth of four clients, rounded down, would drop nobody."""
    came = [Update(state, 1) for state in honest(3)] + [Update(liar(1e6), 1)]
    assert (TrimmedMean(share=0.1)(START, came)["net.w"] - 1).abs().max() < 0.4


def test_krum_takes_the_published_choice():
    came = honest(8)
    flat = [state["net.w"].numpy().ravel() for state in came]
    bad, scores = 2, []
    for one in range(8):
        apart = sorted(float(((flat[one] - flat[other]) ** 2).sum()) for other in range(8) if other != one)
        scores.append(sum(apart[: 8 - bad - 2]))
    best = np.argsort(scores)
    updates = [Update(state, 1) for state in came]
    torch.testing.assert_close(Krum(bad=bad)(START, updates)["net.w"], came[best[0]]["net.w"])
    mean = sum(came[place]["net.w"] for place in best[:3]) / 3
    torch.testing.assert_close(Krum(bad=bad, keep=3)(START, updates)["net.w"], mean)


def test_krum_takes_statistics_from_those_it_keeps():
    came = honest(6)
    merged = Krum()(START, [Update(state, 1) for state in came])
    chosen = next(state for state in came if torch.allclose(state["net.w"], merged["net.w"]))
    torch.testing.assert_close(merged["stat.var"], chosen["stat.var"])


def test_krum_with_two_clients_keeps_both():
    one, other = honest(2)
    merged = Krum()(START, [Update(one, 1), Update(other, 99)])["net.w"]
    torch.testing.assert_close(merged, (one["net.w"] + other["net.w"]) / 2)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(), Krum(keep=2)], ids=repr)
def test_large_tensors_are_merged_piece_by_piece(rule, monkeypatch):
    came = [Update(state, 1) for state in honest()]
    whole = rule(START, came)
    monkeypatch.setattr("cutlayer.rules.robust.AT_ONCE", 4 * HONEST)
    for name, tensor in rule(START, came).items():
        torch.testing.assert_close(tensor, whole[name])


def test_how_many_updates_a_promise_needs():
    assert (FedAvg().least, Median().least, TrimmedMean().least) == (1, 3, 3)
    assert (Krum(bad=1).least, Krum(bad=2).least, Krum(bad=1, keep=9).least) == (5, 7, 10)


@pytest.mark.parametrize("share", [0, 0.5, 0.9, -0.1])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ValueError, match=r"share is a number in \(0, 0\.5\), dropped at either end; Median"):
        TrimmedMean(share=share)


@pytest.mark.parametrize("settings", [{"bad": -1}, {"bad": 1.5}, {"keep": 0}])
def test_impossible_counts_are_refused(settings):
    with pytest.raises(ValueError, match=r"Krum: (bad|keep) is a whole number from"):
        Krum(**settings)
