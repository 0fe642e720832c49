"""CelebA's lists: text files of a picture's name and what is known about it, separated by spaces."""

from pathlib import Path

from .csv_columns import Columns
from .files import CorruptData, in_utf8

NAME = "image_id"  # what the column of file names is called, which the lists leave out


def read_attributes(path: Path) -> Columns:
    """A list that says first how many pictures there are, then what its columns are called (list_attr_celeba.txt)."""
    lines = _lines(path)
    if len(lines) < 3 or len(lines[0]) != 1 or not lines[0][0].isdigit():
        raise CorruptData(
            path, "it should have the number of pictures, the names of its columns, and a line for each"
        )
    return _columns(path, [NAME, *lines[1]], lines[2:], first=3, count=int(lines[0][0]))


def read_pairs(path: Path, name: str) -> Columns:
    """A list without a header: a picture and a number (identity_CelebA.txt, list_eval_partition.txt)."""
    return _columns(path, [NAME, name], _lines(path), first=1)


def has_count(path: Path) -> bool:
    """Whether a table is in this form and not a .csv file."""
    with path.open("rb") as file:
        return file.readline().strip().isdigit()


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in in_utf8(path, path.read_bytes()).splitlines() if line.strip()]


def _columns(path: Path, names: list[str], rows: list[list[str]], first: int, count: int | None = None) -> Columns:
    if not rows or (count is not None and len(rows) != count):
        raise CorruptData(path, f"it should list {count or 'some'} pictures, it lists {len(rows)}")
    for number, row in enumerate(rows, first):
        if len(row) != len(names):
            raise CorruptData(path, f"line {number} has {len(row)} fields, it should have {len(names)}")
    each = zip(*rows, strict=True)
    columns = {name: list(values) for name, values in zip(names, each, strict=True)}
    return Columns(path, columns, list(range(first, first + len(rows))))
