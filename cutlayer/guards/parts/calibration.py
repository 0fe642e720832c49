"""From an ε to noise: the Gaussian mechanism exactly, over all releases of a run, and as papers count sampling."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil, erfc, exp, log, pi, sqrt
from typing import Any, TypeVar

from ..base import Guard

Calibrated = TypeVar("Calibrated", bound=Guard)
FINE = 1e-3  # to which share of itself a multiplier under sampling is found


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """The least δ at this ε for noise of `multiplier` times the distance to hide (Balle & Wang 2018, Theorem 8)."""
    mu = 1 / multiplier
    return exp(_log_phi(mu / 2 - epsilon / mu)) - exp(epsilon + _log_phi(-mu / 2 - epsilon / mu))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The least ε at this δ. E releases of one multiplier are one release of multiplier / √E."""
    mu = 1 / multiplier
    # δ(ε) <= Φ(μ/2 - ε/μ) <= exp(-t²/2) with t = ε/μ - μ/2.
    low, high = 0.0, mu * mu / 2 + mu * sqrt(-2 * log(delta))
    if gaussian_delta(0.0, multiplier) <= delta:
        return 0.0
    return _bisect(low, high, lambda epsilon: gaussian_delta(epsilon, multiplier) <= delta)


def gaussian_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """The least multiplier that gives (ε, δ) over all releases; the error of the search is on the safe side."""
    if releases > 1:
        return sqrt(releases) * gaussian_multiplier(epsilon, delta)
    high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    return _bisect(0.0, high, lambda multiplier: multiplier > 0 and gaussian_delta(epsilon, multiplier) <= delta)


def _bisect(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """The least number between `low` and `high`, where it holds, from above."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_phi(x: float) -> float:
    """log Φ(x), also where Φ(x) is no longer a number."""
    if x > -10:
        return log(erfc(-x / sqrt(2)) / 2)
    square = x * x
    series = 1 - 1 / square * (1 - 3 / square * (1 - 5 / square * (1 - 7 / square)))
    return -square / 2 - log(-x) - log(2 * pi) / 2 + log(series)


# ------------------------------------------------------------------ batches that are drawn at random
@lru_cache(maxsize=16)
def sampled_multiplier(epsilon: float, delta: float, rate: float, epochs: int) -> float:
    """The least multiplier that gives (ε, δ) where each record is in a step's batch with probability `rate`, in
    secret, and neighbours differ by a record more: Rényi's accountant, the usual one of DP-SGD (Mironov et al., 2019)
    """
    dp = _accounting()
    steps = ceil(epochs / rate)

    def spent(multiplier: float) -> float:
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
        accountant = dp.rdp.RdpAccountant().compose(dp.SelfComposedDpEvent(event, steps))
        return float(accountant.get_epsilon(delta))

    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while high - low > FINE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def _accounting() -> Any:
    try:
        import dp_accounting as dp
        import dp_accounting.rdp
    except ImportError as error:
        raise ValueError("noise from sampling needs dp-accounting: pip install 'cutlayer[dp]'") from error
    return dp


# ------------------------------------------------------------------ in a plan
def in_run(guard: Calibrated, epochs: int) -> Calibrated:
    """A copy that knows how many releases its ε is for; a plan says so, nobody types it."""
    own = replace(guard)
    object.__setattr__(own, "epochs", max(1, epochs))
    return own
