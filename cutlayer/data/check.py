"""Is what lies in a data folder what it should be? Read every set that is there, and say so for each."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core.spec import names
from .base import Loaded, MissingData, Source
from .files import SUMS, digest, read_sums, verify
from .npz import Npz
from .rows import Rows

LOOKED_AT = 64  # samples of each part, spread over it, of a set that is too large for memory
Row = dict[str, Any]


def check(folder: Path) -> list[Row]:
    """A row for every named set and every .npz of `folder`: is it found, is it ok, and a sentence on why.

    A damaged set is reported, never raised. Sources that need an argument (a folder of pictures, a table) are left
    out. What else SHA256SUMS lists has a row of its own.
    """
    if not folder.is_dir():
        raise MissingData(f"there is no folder {folder}: give the one that holds the data sets")
    kinds = [kind for kind in names("data").values() if kind.about.forms]
    rows = [_check(kind(), kind.__name__, folder) for kind in kinds]
    rows += [_check(Npz(str(path)), repr(Npz(path.name)), folder) for path in sorted(folder.glob("*.npz"))]
    return rows + _others(folder, {name for kind in kinds for form in kind.about.forms for name in form})


def _check(source: Source, name: str, folder: Path) -> Row:
    row, forms = _row(name), source.about.forms
    files = [place for form in forms for place in form if (folder / place).exists()]
    if forms and not files:
        return {**row, "detail": f"not here: it would be {forms[0][0]} and {len(forms[0]) - 1} more"}
    row["found"] = True
    # A damaged set can break whatever reads it; that costs its row, not the other rows.
    try:
        loaded = source.load(folder)
        row |= {"train": len(loaded.train), "test": len(loaded.test), "shape": list(loaded.train.x.shape[1:])}
        _look(loaded)
        sums = _sums(source, loaded, folder, files)
        problem = _problem(source, loaded, sums)
        return {**row, "ok": problem is None, "detail": problem or _praise(loaded, folder, files, sums)}
    except Exception as error:
        return {**row, "detail": " ".join(str(error).split()) or type(error).__name__}


def _look(loaded: Loaded) -> None:
    """Read some of a set whose samples are still on disk: whatever is wrong with one of them is raised."""
    for samples in (loaded.train, loaded.test):
        some = torch.linspace(0, len(samples) - 1, min(LOOKED_AT, len(samples))).long()
        if samples.on_disk:
            samples.images(some)
        if isinstance(samples.y, Rows):
            samples.y[some]


class _Sum(NamedTuple):
    """An md5 that was published for a file, and the one found."""

    file: str
    found: str
    published: str


def _sums(source: Source, loaded: Loaded, folder: Path, files: list[str]) -> list[_Sum]:
    """Of the files themselves, and of those that the arrays rebuild."""
    known = source.about.md5
    there = [(place, digest(folder / place, "md5")) for place in files if Path(place).name in known]
    return [_Sum(place, md5, known[Path(place).name]) for place, md5 in [*there, *source.rebuilt(loaded).items()]]


def _problem(source: Source, loaded: Loaded, sums: list[_Sum]) -> str | None:
    about, sizes, shape = source.about, (len(loaded.train), len(loaded.test)), tuple(loaded.train.x.shape[1:])
    if about.sizes and sizes not in about.sizes:
        known = " or ".join(f"{train:,} + {test:,}" for train, test in about.sizes)
        return f"it has {sizes[0]:,} + {sizes[1]:,} samples, it should have {known}"
    if about.shape not in (None, shape):
        return f"its samples are {_times(shape)}, they should be {_times(about.shape or ())}"
    if about.classes not in (None, len(loaded.classes)):
        return f"it has {len(loaded.classes)} classes, it should have {about.classes}"
    for file, found, published in sums:
        if found != published:
            return f"{file} is not the official one: its md5 is {found}, the published one {published}"
    return None


def _praise(loaded: Loaded, folder: Path, files: list[str], sums: list[_Sum]) -> str:
    size = f"{len(loaded.train):,} + {len(loaded.test):,} samples of {_times(tuple(loaded.train.x.shape[1:]))}"
    official = "; the official ones, by md5" if sums else ""
    listed = f"; files as in {SUMS}" if read_sums(folder).keys() & set(files) else ""
    looked = f"; {LOOKED_AT} of each part were decoded" if loaded.train.on_disk else ""
    return f"{size} in {len(loaded.classes)} classes{official}{listed}{looked}"


def _others(folder: Path, known: set[str]) -> list[Row]:
    """One row for the files of SHA256SUMS that belong to no set, or are gone."""
    row = _row(SUMS) | {"found": True}
    try:
        sums = read_sums(folder)
        rest = [name for name in sums if name not in known or not (folder / name).is_file()]
        for name in rest:
            if not (folder / name).is_file():
                return [{**row, "detail": f"it lists {name}, which is not here"}]
            verify(folder, name, sums)
    except (ValueError, OSError) as error:
        return [{**row, "detail": str(error)}]
    return [{**row, "ok": True, "detail": f"the {len(rest)} other files it lists are as it says"}] if rest else []


def _row(name: str) -> Row:
    return {"name": name, "found": False, "ok": False, "detail": "", "train": None, "test": None, "shape": None}


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
