"""Things in pictures by their outlines, as COCO has them: polygons or run lengths, drawn into label maps."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import CorruptData
from .image_files import Frame, opened
from .masks import IGNORED, Maps, fitted
from .paths import Paths

Outline = Sequence[Sequence[float]] | dict[str, object]  # of one thing, as the file has it


class Piece(NamedTuple):
    """Part of a thing: which thing of its picture, of which class, and its polygon (x, y, x, y, …) or its runs."""

    thing: int
    label: int
    runs: bool
    numbers: np.ndarray


class Outlines:
    """The pieces of many pictures in a few arrays: as objects they would fill the memory by themselves."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._of: list[int] = []  # the picture of each

    def add(self, picture: int, thing: int, label: int, outline: Outline) -> None:
        for runs, numbers in _parts(outline):
            self._pieces.append(Piece(thing, label, runs, np.asarray(numbers, np.float32)))
            self._of.append(picture)

    def packed(self, pictures: int) -> "Packed":
        order = np.argsort(np.asarray(self._of, np.int64), kind="stable")
        pieces = [self._pieces[place] for place in order]
        counts = np.bincount(np.asarray(self._of, np.int64), minlength=pictures)
        facts = np.asarray([(one.thing, one.label, one.runs) for one in pieces], np.int32).reshape(-1, 3)
        numbers = np.concatenate([*(one.numbers for one in pieces), np.empty(0, np.float32)])
        return Packed(_ends(counts), _ends([len(one.numbers) for one in pieces]), facts, numbers)


class Packed(NamedTuple):
    ends: np.ndarray  # of the pieces of each picture, the first being 0
    cuts: np.ndarray  # of the numbers of each piece, the first being 0
    facts: np.ndarray  # thing, label, runs of each piece
    numbers: np.ndarray

    def of(self, picture: int) -> list[Piece]:
        found = []
        for one in range(self.ends[picture], self.ends[picture + 1]):
            thing, label, runs = self.facts[one].tolist()
            found.append(Piece(thing, label, bool(runs), self.numbers[self.cuts[one] : self.cuts[one + 1]]))
        return found


class Drawn(Maps):
    """Label maps drawn from outlines when they are read."""

    def __init__(self, outlines: Packed, which: Tensor, pictures: Sequence[Path], sizes: np.ndarray, frame: Frame):
        """`which` of the outlined pictures these are, and the width and height that each is said to have."""
        super().__init__(frame)
        self.outlines, self.which, self.pictures, self.sizes = outlines, which, Paths.of(pictures), sizes

    def __len__(self) -> int:
        return len(self.which)

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        rows = [(self.pictures[row], tuple(self.sizes[row].tolist())) for row in which.tolist()]
        return partial(_drawn, rows, [self.outlines.of(int(one)) for one in self.which[which]], self.frame)


def _drawn(rows: Sequence[tuple[Path, tuple[int, ...]]], pieces: Sequence[list[Piece]], frame: Frame) -> Tensor:
    maps = []
    for (path, size), mine in zip(rows, pieces, strict=True):
        with opened(path) as image:
            found = image.size
        if found != size:
            raise CorruptData(path, f"it has {found[0]}x{found[1]} pixels, its outlines are for {size[0]}x{size[1]}")
        maps.append(fitted(label_map(mine, *size), frame))
    return torch.from_numpy(np.stack(maps))


def label_map(pieces: Sequence[Piece], width: int, height: int) -> np.ndarray:
    """The class of each pixel; where two things overlap it has none, as torchvision's recipe reads COCO."""
    found, things = np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8)
    for thing in sorted({one.thing for one in pieces}):
        mine = [one for one in pieces if one.thing == thing]
        inside = np.zeros((height, width), bool)
        for one in mine:
            inside |= of_runs(one.numbers, width, height) if one.runs else polygon(one.numbers, width, height)
        found[inside] = mine[0].label
        things[inside] = np.minimum(things[inside] + 1, 2)
    found[things > 1] = IGNORED
    return found


def polygon(numbers: np.ndarray, width: int, height: int) -> np.ndarray:
    """Pixels whose centre lies inside, by the even-odd rule: along a row, each side that is crossed changes it."""
    x, y = numbers.astype(np.float64).reshape(-1, 2).T
    ends = np.roll(x, -1), np.roll(y, -1)
    crossings = np.zeros((height, width + 1), np.int64)
    centres = np.arange(height) + 0.5
    for x0, y0, x1, y1 in zip(x, y, *ends, strict=True):
        low, high = np.searchsorted(centres, (min(y0, y1), max(y0, y1)))
        rows = np.arange(low, high)
        if len(rows):
            at = x0 + (centres[rows] - y0) * (x1 - x0) / (y1 - y0)
            np.add.at(crossings, (rows, np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)), 1)
    return crossings.cumsum(1)[:, :width] % 2 == 1


def of_runs(runs: np.ndarray, width: int, height: int) -> np.ndarray:
    """Outside, inside, outside, … so many pixels each, down the columns."""
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs.astype(np.int64)).reshape(width, height).T


def _parts(outline: Outline) -> list[tuple[bool, Sequence[float]]]:
    if not isinstance(outline, dict):
        for one in outline:
            if len(one) < 6 or len(one) % 2:
                raise ValueError(f"a polygon has three or more points, each x and y; got {len(one)} numbers")
        return [(False, one) for one in outline]
    counts, size = outline["counts"], outline["size"]
    runs = unpacked(counts) if isinstance(counts, str) else counts
    assert isinstance(runs, list) and isinstance(size, list)
    if sum(runs) != size[0] * size[1]:
        raise ValueError(f"runs of {sum(runs)} pixels for a picture of {size[1]}x{size[0]}")
    return [(True, runs)]


def unpacked(text: str) -> list[int]:
    """Run lengths out of COCO's text: six bits a sign from "0" on, five of a number (the lowest first) and one that
    says whether it goes on; from the fourth number on each is what is more than in the last but one."""
    runs: list[int] = []
    number = shift = 0
    for sign in text:
        bits = ord(sign) - ord("0")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:  # negative
                number -= 1 << shift
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = shift = 0
    return runs


def _ends(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
