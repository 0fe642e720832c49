"""Tables in .csv files: named columns of text, read as numbers, classes or attributes."""

import csv
import difflib
import io
import math
from pathlib import Path

import torch
from torch import Tensor

from .files import CorruptData, in_utf8

MISSING = ("", "?", "na", "n/a", "nan", "null")


class NoColumn(ValueError):
    """A column or field that was asked for is not there."""


class Columns:
    """The columns of one table. Rows are numbered by their line in the file: the header is row 1."""

    def __init__(self, path: Path, columns: dict[str, list[str]], lines: list[int]):
        self.path, self.columns, self.lines = path, columns, lines

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def column(self, name: str) -> list[str]:
        """The texts of a column, none of them missing."""
        if name not in self.columns:
            near = difflib.get_close_matches(name, self.columns, n=1)
            raise NoColumn(
                f"{self.path} has no column {name!r}{f', did you mean {near[0]!r}?' if near else ';'} "
                f"it has {', '.join(self.columns)}"
            )
        values = self.columns[name]
        for row, value in enumerate(values):
            if value.lower() in MISSING:
                raise ValueError(
                    f"{self._at(row, name)} the value is missing ({value!r}): fill it in or drop the row"
                )
        return values

    def numbers(self, name: str) -> Tensor | None:
        """The column as float64, or None if it is one of texts."""
        values = [_number(text) for text in self.column(name)]
        odd = [row for row, value in enumerate(values) if value is None]
        # A few stray texts among numbers are slips, and would turn every number into a category.
        if odd and 2 * len(odd) < len(values):
            raise ValueError(
                f"{self._at(odd[0], name)} {self.columns[name][odd[0]]!r} is not a finite number, "
                "as most of the column are: mend it, or write every value as text"
            )
        return None if odd else torch.tensor(values, dtype=torch.float64)

    def whole(self, name: str) -> Tensor:
        """The column as int64."""
        numbers = self.numbers(name)
        if numbers is None or (numbers != numbers.round()).any():
            raise ValueError(f"the column {name!r} of {self.path} must hold whole numbers, or a text for each class")
        return numbers.long()

    def classes(self, name: str) -> tuple[Tensor, tuple[str, ...]]:
        """Labels from 0, and what each stands for: texts in the order of the alphabet, numbers by size."""
        numbers = self.numbers(name)
        if numbers is None:
            texts = self.column(name)
            places = {text: place for place, text in enumerate(sorted(set(texts)))}
            return torch.tensor([places[text] for text in texts]), tuple(places)
        values, y = self.whole(name).unique(return_inverse=True)
        if values.tolist() == [-1, 1]:
            return y, (f"not {name}", name)
        return y, tuple(map(str, values.tolist()))

    def attribute(self, name: str) -> Tensor:
        """Numbers as they are, but 0 and 1 for -1 and 1; texts as their place in the alphabet."""
        numbers = self.numbers(name)
        if numbers is None:
            return self.classes(name)[0]
        if numbers.unique().tolist() == [-1, 1]:
            return (numbers > 0).long()
        return numbers.long() if (numbers == numbers.round()).all() else numbers.float()

    def _at(self, row: int, name: str) -> str:
        return f"{self.path}, row {self.lines[row]}, column {name!r}:"


def read_columns(path: Path) -> Columns:
    """The table in `path`: a header, then rows of as many fields, separated by commas, semicolons or tabs."""
    lines, rows = _rows(path, in_utf8(path, path.read_bytes()))
    if len(rows) < 2:
        raise CorruptData(path, "it should have a header and at least one row")
    header = [name.strip() for name in rows[0]]
    if "" in header:
        raise CorruptData(path, f"column {header.index('') + 1} has no name (is it a row number? leave it out)")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise CorruptData(path, f"the column {twice!r} is there twice")
    for number, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise CorruptData(path, f"row {number} has {len(row)} fields, the header {len(header)}")
    return Columns(path, {name: [row[at].strip() for row in rows[1:]] for at, name in enumerate(header)}, lines[1:])


def _rows(path: Path, text: str) -> tuple[list[int], list[list[str]]]:
    """The rows that are not empty, and the line in which each ends."""
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    lines, rows, done = list[int](), list[list[str]](), 0
    usual = csv.field_size_limit(max(1, len(text)))  # a text may be a book
    try:
        for row in reader:
            done = reader.line_num
            if row:
                lines.append(done)
                rows.append(row)
    except csv.Error as error:
        raise CorruptData(
            path,
            f"the row that begins in line {done + 1} is none of a table ({error}): put a field that begins with a "
            "quote into quotes, and write each quote inside it twice",
        ) from error
    finally:
        csv.field_size_limit(usual)
    return lines, rows


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Python reads 1_000 as a number; nobody means that in a table.
    return value if math.isfinite(value) and "_" not in text else None
