"""Columns of a table: which numbers of a row belong to which of them, and what they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Column:
    """A number is one feature, a category one 0/1 feature a value."""

    name: str
    first: int  # the feature at which it begins
    values: tuple[str, ...] = ()  # of a category; empty: a number
    mean: float = 0.0  # of a number: the feature times `spread` plus this is what the table has
    spread: float = 1.0

    @property
    def width(self) -> int:
        return len(self.values) or 1

    def of(self, rows: Tensor) -> Tensor:
        """Its features, (N, width)."""
        return rows[:, self.first : self.first + self.width]

    def coded(self, rows: Tensor) -> Tensor:
        """One number a row: the feature, or the place of the likeliest value."""
        return self.of(rows).argmax(1) if self.values else self.of(rows)[:, 0]

    def shown(self, row: Tensor) -> str:
        """What a single row holds here, as the table would have it."""
        code = self.coded(row[None])[0]
        return self.values[int(code)] if self.values else f"{float(code) * self.spread + self.mean:.4g}"


def unnamed(features: int) -> tuple[Column, ...]:
    """Columns of numbers that nobody named."""
    return tuple(Column(f"feature {place}", place) for place in range(features))


def features(columns: Sequence[Column]) -> int:
    """How many numbers a row has."""
    return sum(column.width for column in columns)
