"""Your own tabular data: numbers and categories in one .csv file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..core.columns import Column
from ..core.seeds import derive
from .base import About, Loaded, Samples, Source, carve, refuse_one_class
from .csv_columns import Columns, read_columns
from .faces import check_attributes
from .files import own_file
from .scaling import Scale

MOST_VALUES = 256  # a column of more different texts names the rows rather than describing them


@dataclass(frozen=True, repr=False)
class Table(Source):
    """Your own table, any number of features, from a .csv file with a header; target is the column to learn.

    Columns of numbers are standardised by the training part, columns of text become one 0/1 feature a value. The
    target and the `attributes` (columns that must not leak) are not among the features. Labels that are texts are
    numbered in the order of the alphabet. A tenth of every class is set aside for testing. A table without its target
    is for `cutlayer predict` alone.
    """

    about: ClassVar[About] = About(
        name="a table of one's own", licence="yours", origin="A .csv file with a header and no missing values."
    )

    path: str
    target: str
    attributes: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self.attributes)

    def read(self, folder: Path | None) -> Loaded:
        table = read_columns(own_file(folder, self.path))
        y, classes = table.classes(self.target)
        s = {name: table.attribute(name) for name in self.attributes}
        rest = [name for name in table.names if name not in (self.target, *self.attributes)]
        if not rest:
            raise ValueError(
                f"{table.path} has no column besides the target and the attributes: nothing to learn from"
            )
        kept, held = carve(y, derive(0, "table", "test"))
        columns, parts = _described(table, rest, kept)
        refuse_one_class(table.path, y, f"the column {self.target!r}")
        pool = Samples(torch.cat(parts, 1), y, s, columns=columns, places=torch.tensor(table.lines))
        return Loaded(pool[kept], pool[held], classes, _scale(columns))

    def has_labels(self, folder: Path | None) -> bool:
        return self.target in read_columns(own_file(folder, self.path)).names

    def unlabelled_rows(self, folder: Path | None, known: Loaded) -> Tensor:
        table, learnt = read_columns(own_file(folder, self.path)), known.train.columns
        if not learnt:
            raise ValueError(
                f"this network has learnt from no table with named columns, so {self} has no place in it"
            )
        if other := set(table.names) - {one.name for one in learnt} - set(self.attributes):
            raise ValueError(
                f"{table.path} has the column {min(other)!r}, which was not learnt from: take it out, or name it as "
                f"the target where it is that, in place of {self.target!r}"
            )
        return torch.cat([_as_learnt(table, column) for column in learnt], 1)


def _as_learnt(table: Columns, column: Column) -> Tensor:
    """The features of a column of which it is known what they are; numbers as they were measured."""
    if not column.values:
        numbers = table.numbers(column.name)
        if numbers is None:
            raise ValueError(f"the column {column.name!r} of {table.path} holds texts, and numbers were learnt from")
        return numbers[:, None]
    told = table.column(column.name)
    if unknown := sorted(set(told) - set(column.values)):
        raise ValueError(
            f"the column {column.name!r} of {table.path} has the value {unknown[0]!r}, which was not learnt: there "
            f"are {', '.join(column.values)}"
        )
    codes = torch.tensor([column.values.index(text) for text in told])
    return torch.nn.functional.one_hot(codes, len(column.values)).double()


def _described(table: Columns, names: list[str], train: Tensor) -> tuple[tuple[Column, ...], list[Tensor]]:
    """What each column is, and its features."""
    columns: list[Column] = []
    parts: list[Tensor] = []
    for name in names:
        column, part = _features(table, name, train, sum(one.width for one in columns))
        columns.append(column)
        parts.append(part)
    return tuple(columns), parts


def _scale(columns: tuple[Column, ...]) -> Scale:
    """What was done to the numbers; features of a text are as they are."""
    means = tuple(value for one in columns for value in ((0.0,) * one.width if one.values else (one.mean,)))
    spreads = tuple(value for one in columns for value in ((1.0,) * one.width if one.values else (one.spread,)))
    return Scale(means, spreads)


def _features(table: Columns, name: str, train: Tensor, first: int) -> tuple[Column, Tensor]:
    """A column as one float32 feature, or as one a value, from the `first` on."""
    numbers = table.numbers(name)
    if numbers is not None:
        # A column that never changes in training says nothing: it stays at 0 there.
        scale = Scale.of(numbers[train, None])
        return Column(name, first, mean=scale.mean[0], spread=scale.spread[0]), scale.apply(numbers[:, None])
    codes, values = table.classes(name)
    if len(values) > MOST_VALUES:
        raise ValueError(
            f"the column {name!r} of {table.path} has {len(values)} different texts, over {MOST_VALUES}: it names "
            "rows rather than describing them; take it out of the file, or write it as numbers"
        )
    return Column(name, first, values), torch.nn.functional.one_hot(codes, len(values)).float()
