"""How much of a table was read: skill, column by column.

A number is scored by R², 1 - squared error / variance; a category by how often its value is named, scaled so that
always naming the commonest gives 0 and being always right gives 1. Both are what forecasting calls skill: 0 is no
more than the column's mean or commonest value, 1 is everything, and below 0 is worse than no look at all. A record's
skill is the mean over its columns, so that the mean over records is the mean over columns as well.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.columns import Column, unnamed
from .bootstrap import SURE, tail

INSIDE = (0.01, 0.99)  # quantiles of the known records: numbers beyond are cut to these, as pixels are to [0, 1]
STILL = 1e-6  # a number that deviates less never changes


class Limits(NamedTuple):
    """Between which each column's numbers are compared: a single outlier would be most of a column's variance."""

    columns: tuple[Column, ...]
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, known: Tensor, columns: Sequence[Column] = ()) -> "Limits":
        """By records that are not scored. A feature of zeros and ones has no outliers, however rare the ones are."""
        named = tuple(columns) or unnamed(known.shape[1])
        low, high = torch.quantile(known.double(), known.new_tensor(INSIDE, dtype=torch.float64), dim=0)
        marks = ((known == 0) | (known == 1)).all(0)
        return cls(named, torch.where(marks, 0.0, low), torch.where(marks, 1.0, high))

    def inside(self, rows: Tensor) -> Tensor:
        return rows.double().clamp(self.low.to(rows.device), self.high.to(rows.device))


class Cells(NamedTuple):
    """The skill of every single cell, (records, columns), of the columns that vary."""

    scores: Tensor
    columns: tuple[Column, ...]
    chance: tuple[float | None, ...]  # share of the commonest value; None: a number
    still: tuple[str, ...]  # columns that never change among these records: there is nothing to read in them
    influence: Tensor  # of each record on each column's skill, for its standard error

    @property
    def records(self) -> Tensor:
        return self.scores.mean(1)


def cells(truth: Tensor, guess: Tensor, limits: Limits) -> Cells:
    """How well each cell of `truth` was read. The variance, or the commonest value, is that of these records."""
    if truth.shape != guess.shape:
        raise ValueError(
            f"a reconstruction has the shape of its truth, {tuple(truth.shape)}; got {tuple(guess.shape)}"
        )
    known, said = limits.inside(truth), limits.inside(guess)
    scores: list[Tensor] = []
    influence: list[Tensor] = []
    kept: list[Column] = []
    chances: list[float | None] = []
    still: list[str] = []
    for column in limits.columns:
        # Categories are compared as they are: cutting features to their quantiles could make two values equal.
        found = _category(column, truth, guess) if column.values else _number(column, known, said)
        if found is None:
            still.append(column.name)
            continue
        scores.append(found.scores)
        influence.append(found.influence)
        chances.append(found.chance)
        kept.append(column)
    if not kept:
        raise ValueError(
            f"none of the {len(limits.columns)} columns changes from record to record: nothing can be read"
        )
    return Cells(torch.stack(scores, 1), tuple(kept), tuple(chances), tuple(still), torch.stack(influence, 1))


class _Read(NamedTuple):
    """One column. Skill is a ratio, and which records happen to be scored moves its denominator, too: influence is
    what one record more would change in both (the delta method)."""

    scores: Tensor
    influence: Tensor
    chance: float | None = None


def _number(column: Column, truth: Tensor, guess: Tensor) -> _Read | None:
    wanted, said = column.coded(truth), column.coded(guess)
    variance = wanted.var(correction=0)
    if variance.sqrt() < STILL:
        return None
    error, apart = (wanted - said).square() / variance, (wanted - wanted.mean()).square() / variance
    return _Read(1 - error, error.mean() * apart - error)


def _category(column: Column, truth: Tensor, guess: Tensor) -> _Read | None:
    wanted, said = column.coded(truth), column.coded(guess)
    counts = wanted.bincount()
    chance = int(counts.max()) / len(wanted)
    if chance == 1:
        return None
    right, commonest = (said == wanted).double(), (wanted == counts.argmax()).double()
    missed = 1 - float(right.mean())
    influence = (right - right.mean()) / (1 - chance) - missed * (commonest - chance) / (1 - chance) ** 2
    return _Read((right - chance) / (1 - chance), influence, chance)


@torch.no_grad()
def scores(found: Cells) -> dict[str, float]:
    """The mean over records and columns, and what the best-read tenth of the records reaches."""
    return {"skill": float(found.records.mean()), "skill_p90": tail(found.records)}


@torch.no_grad()
def by_column(found: Cells, units: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Each column by name, the best-read first: its skill, and between which ends that lies.

    The ends hold for all columns together with 95 % (Bonferroni): of many columns one always looks well read. Records
    that shared what was sent (equal numbers in `units`) are one observation. Of a category also how often right.
    """
    means, doubt = found.scores.mean(0), _standard_error(found.influence, units)
    far = torch.special.ndtri(torch.tensor(1 - (1 - SURE) / 2 / len(found.columns), dtype=torch.float64)) * doubt
    told = []
    for place, (column, chance) in enumerate(zip(found.columns, found.chance, strict=True)):
        skill, reach = float(means[place]), float(far[place])
        right = None if chance is None else chance + skill * (1 - chance)
        one = {"name": column.name, "skill": skill, "interval": [skill - reach, min(1.0, skill + reach)]}
        told.append({**one, "accuracy": right, "chance": chance})
    return sorted(told, key=lambda one: -one["skill"])


def _standard_error(influence: Tensor, units: Sequence[int] | None) -> Tensor:
    """Of each column's skill; what varies is units, not records."""
    apart = influence
    if units is not None:
        unit = torch.tensor(list(units), device=influence.device).unique(return_inverse=True)[1]
        apart = apart.new_zeros(int(unit.max()) + 1, apart.shape[1]).index_add(0, unit, apart)
    return apart.square().sum(0).sqrt() / len(influence)


def skill(truth: Tensor, guess: Tensor, known: Tensor, columns: Sequence[Column] = ()) -> Tensor:
    """One value a record, as an audit scores it; 0 where no column changes among these few records."""
    try:
        return cells(truth, guess, Limits.of(known, columns)).records
    except ValueError:
        return truth.new_zeros(len(truth), dtype=torch.float64)
