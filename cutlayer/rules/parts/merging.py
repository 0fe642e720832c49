"""What merging rules share: how far the clients moved on average, as a gradient that the server steps along."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import MEMORY, NET, STAT, Rule, Update

State = dict[str, Tensor]
NO_SAMPLES = "the updates were learnt from no samples: leave clients without data out of the round"


@dataclass(frozen=True, repr=False)
class Merging(Rule):
    """One state from many. g = Σ pᵢ (x − xᵢ) points uphill like a gradient, and every rule subtracts.

    Written as a sum of differences, g is exactly zero where nobody moved. Sums are in double precision, so that the
    order of the updates is lost in rounding. A rule says how clients are weighed (`shares`), how their moves become
    one (`moved`) and what step is made of that (`step`). One that says neither of the first two is a mean by samples,
    and takes updates one at a time (`running`).
    """

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> State:
        if not updates:
            return dict(current)
        _refuse_unlike(current, updates)
        shares = self.shares(current, updates)
        return self.stepped(
            current, lambda name: self.moved(current[name], [update.state[name] for update in updates], shares)
        )

    def running(self, current: Mapping[str, Tensor]) -> "RunningMean | None":
        own = type(self)
        mean = (own.shares, own.moved, own.__call__) == (Merging.shares, Merging.moved, Merging.__call__)
        return RunningMean(self, current) if mean else None

    def stepped(self, current: Mapping[str, Tensor], moved: Callable[[str], Tensor]) -> State:
        """The next state, by how far each tensor was moved."""
        after: State = {}
        for name, now in current.items():
            if not name.startswith((NET, STAT)):
                continue
            g = moved(name)
            if name.startswith(NET) and now.is_floating_point():
                after |= self.step(name.removeprefix(NET), now, g, current)
            else:  # statistics and counters are data: their mean, and no step beyond it
                after[name] = like(now, now.double() - g)
        return after

    def shares(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> list[float]:
        """p, each client's weight: its share of the samples."""
        total = sum(update.samples for update in updates)
        if total <= 0 or any(update.samples < 0 for update in updates):
            raise ValueError(NO_SAMPLES)
        return [update.samples / total for update in updates]

    def moved(self, now: Tensor, arrived: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        """g of one tensor, in double precision."""
        g = torch.zeros_like(now, dtype=torch.float64)
        for tensor, share in zip(arrived, shares, strict=True):
            if share:
                g.add_(_way_back(now, tensor), alpha=share)
        return g

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        """One parameter's next value, as "net.<name>", and what is remembered of it, as "rule.<what>.<name>"."""
        return {NET + name: like(now, now.double() - g)}


class RunningMean:
    """g of a round, one update after the other: Σ nᵢ (x − xᵢ), divided by Σ nᵢ when all are there.

    It takes the memory of one state in double precision, however many updates come. `Merging.__call__` knows Σ nᵢ
    before it begins and weighs by shares, which rounds otherwise: where a mean lies midway between two numbers of the
    weights' precision, the two ways may take one each.
    """

    def __init__(self, rule: Merging, current: Mapping[str, Tensor]):
        self._rule, self._current = rule, current
        self._sums: State = {}
        self._updates = self._samples = 0

    def add(self, update: Update) -> None:
        """Nothing of `update` is kept."""
        _refuse_unlike(self._current, [update])
        if update.samples < 0:
            raise ValueError(NO_SAMPLES)
        self._updates, self._samples = self._updates + 1, self._samples + update.samples
        if not update.samples:
            return
        for name, now in self._current.items():
            if name.startswith((NET, STAT)):
                if name not in self._sums:
                    self._sums[name] = torch.zeros_like(now, dtype=torch.float64)
                self._sums[name].add_(_way_back(now, update.state[name]), alpha=update.samples)

    def merged(self) -> State:
        """The rule's next state; what it was, if no update came."""
        if not self._updates:
            return dict(self._current)
        if not self._samples:
            raise ValueError(NO_SAMPLES)
        return self._rule.stepped(self._current, lambda name: self._sums[name] / self._samples)


def _way_back(now: Tensor, arrived: Tensor) -> Tensor:
    """x − xᵢ in double precision. As large as two bodies, so that it is made once and not three times."""
    arrived = arrived.to(now.device)
    # torch does not subtract truth values, which guards keep among their statistics.
    return now.to(torch.float64, copy=True).sub_(arrived.byte() if arrived.dtype is torch.bool else arrived)


def like(now: Tensor, value: Tensor) -> Tensor:
    """`value` in the precision of `now`; whole numbers are rounded, not cut off."""
    return value.to(now.dtype) if now.is_floating_point() else value.round().to(now.dtype)


def remembered(what: str, name: str, g: Tensor, current: Mapping[str, Tensor], first: float = 0.0) -> Tensor:
    """What the rule kept of a parameter, in double precision; `first` before the first round."""
    kept = current.get(f"{MEMORY}{what}.{name}")
    return torch.full_like(g, first) if kept is None else kept.to(g)


def to_remember(what: str, name: str, value: Tensor, now: Tensor) -> State:
    """In the parameter's own precision, but never below float32: second moments of half floats vanish."""
    return {f"{MEMORY}{what}.{name}": value.to(torch.promote_types(now.dtype, torch.float32))}


def momentum(beta: float, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> tuple[Tensor, State]:
    """(v = β v + g, what to remember of it); without momentum nothing is kept."""
    if not beta:
        return g, {}
    v = remembered("momentum", name, g, current).mul(beta).add_(g)
    return v, to_remember("momentum", name, v, now)


def _refuse_unlike(current: Mapping[str, Tensor], updates: Sequence[Update]) -> None:
    names = [name for name in current if name.startswith((NET, STAT))]
    if not names:
        raise ValueError("a merge starts from weights all clients began with: give them as `current`")
    for update in updates:
        for name in names:
            if name not in update.state or update.state[name].shape != current[name].shape:
                raise ValueError(f"an update does not fit at {name}: let `sound` sort the updates first")
