"""How sure a figure is: intervals by drawing the scored samples again, those that share a row of a message together.

Efron's percentile bootstrap: 2,000 times as many units as there are, drawn with replacement; the interval is what
lies between the 2.5th and the 97.5th percentile of the figure. A unit is what was sent once: where a guard puts
several samples into one row, what was read of them is one observation, not several.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..core.seeds import derive, generator

DRAWS = 2000
SURE = 0.95  # of an interval
TAIL = 0.1  # the share of images that `tail` looks at: those that were read best
RECOGNISED = 0.5  # SSIM from which a picture shows what was in the original
CELLS = 2**22  # numbers held at once


def tail(scores: Tensor) -> float:
    """The 90th percentile: what the best-read tenth of all images reaches at least.

    The tenth is rounded down, and no score is interpolated: one image in ten that is rebuilt exactly gives 1.
    """
    return float(scores.sort(descending=True).values[_in_tail(len(scores)) - 1])


def _in_tail(count: int) -> int:
    return max(1, int(TAIL * count + 1e-9))


Figures = dict[str, Tensor]  # by name, one value a draw


def redrawn(scores: Sequence[float], units: Sequence[int] | None, seed: int) -> Figures:
    """Mean ("value"), 90th percentile ("p90") and share above 0.5 ("above_half") of each draw."""
    return _redrawn(tuple(scores), None if units is None else tuple(units), seed)


@lru_cache(maxsize=256)  # a report asks for the same rows several times
def _redrawn(scores: tuple[float, ...], units: tuple[int, ...] | None, seed: int) -> Figures:
    values, unit = torch.tensor(scores, dtype=torch.float64), _numbered(units, len(scores))
    values, order = values.sort(descending=True)
    unit = unit[order]
    found: dict[str, list[Tensor]] = {"value": [], "p90": [], "above_half": []}
    for counts in _counts(int(unit.max()) + 1, len(scores), seed):
        weights = counts[:, unit]
        total = weights.sum(1)
        found["value"].append(weights @ values / total)
        found["above_half"].append(weights @ (values > RECOGNISED).double() / total)
        needed = (TAIL * total + 1e-9).floor().clamp_min(1)
        place = (weights.cumsum(1) < needed[:, None]).sum(1)
        found["p90"].append(values[place])
    return {name: torch.cat(parts) for name, parts in found.items()}


def redrawn_areas(
    members: Sequence[float],
    strangers: Sequence[float],
    units: tuple[Sequence[int] | None, Sequence[int] | None],
    seed: int,
) -> Figures:
    """The area under the ROC curve of each draw; members and strangers are drawn each from their own."""
    ours, theirs = (torch.tensor(list(side), dtype=torch.float64) for side in (members, strangers))
    wins = (ours[:, None] > theirs).double() + 0.5 * (ours[:, None] == theirs).double()
    first, second = (_numbered(own, len(side)) for own, side in zip(units, (ours, theirs), strict=True))
    areas = []
    most = max(len(ours), len(theirs))
    drawn = zip(
        _counts(int(first.max()) + 1, most, seed),
        _counts(int(second.max()) + 1, most, derive(seed, "strangers")),
        strict=True,
    )
    for one, other in drawn:
        left, right = one[:, first], other[:, second]
        areas.append(((left @ wins) * right).sum(1) / (left.sum(1) * right.sum(1)))
    return {"value": torch.cat(areas)}


def interval(draws: Tensor) -> list[float]:
    """[low, high] between which 95 % of the draws lie."""
    ends = draws.new_tensor([(1 - SURE) / 2, (1 + SURE) / 2])
    return [float(end) for end in draws.quantile(ends)]


def _numbered(units: Sequence[int] | None, count: int) -> Tensor:
    """Units as 0, 1, 2, …; each sample is its own where none are named."""
    if units is None:
        return torch.arange(count)
    return torch.tensor(list(units)).unique(return_inverse=True)[1]


def _counts(units: int, samples: int, seed: int) -> Iterator[Tensor]:
    """How often each unit was drawn, (draws, units), in pieces that fit into memory."""
    draw, size = generator(seed), max(1, CELLS // max(units, samples))
    for first in range(0, DRAWS, size):
        picked = torch.randint(units, (min(size, DRAWS - first), units), generator=draw)
        empty = torch.zeros(len(picked), units, dtype=torch.float64)
        yield empty.scatter_add_(1, picked, torch.ones_like(picked, dtype=torch.float64))
