"""Contact sheets: many small pictures in one large one, row by row, with a JSON file that describes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .files import CorruptData
from .image_files import opened


def read_sheet(picture: Path, words: Path, side: int) -> tuple[Tensor, "Words"]:
    """The pictures, 3 x `side` x `side` bytes each, and what is known about them."""
    meta = Words(words)
    count, columns = meta.number("n"), meta.number("cols")
    if meta.number("tile") != side:
        raise CorruptData(words, f"its pictures are {meta.number('tile')} pixels wide, they should be {side}")
    with opened(picture) as image:
        width, height = image.size
        if width != columns * side or height % side or height // side * columns < count:
            raise ValueError(f"{width}x{height} pixels cannot hold {count} pictures of {side}, {columns} a row")
        pixels = np.asarray(image.convert("RGB"))
    tiles = pixels.reshape(height // side, side, columns, side, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(tiles.reshape(-1, 3, side, side)[:count]), meta


class Words:
    """The JSON file of a sheet: `n`, `tile`, `cols`, and a list of `n` entries for each fact."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise CorruptData(path, f"not a JSON file ({error})") from error
        if not isinstance(self.content, dict):
            raise CorruptData(path, "it should describe a sheet by n, tile, cols and lists")

    def number(self, name: str) -> int:
        value = self._get(name)
        if type(value) is not int or value < 1:
            raise CorruptData(self.path, f"{name} should be a whole number above 0, it is {value!r}")
        return value

    def column(self, name: str, below: int) -> Tensor:
        """A whole number for each picture, from 0 to under `below`."""
        values = self._get(name)
        if not isinstance(values, list) or len(values) != self.number("n"):
            raise CorruptData(self.path, f"{name} should be a list of {self.number('n')} numbers")
        for row, value in enumerate(values):
            if type(value) is not int or not 0 <= value < below:
                raise CorruptData(self.path, f"{name} at row {row} should be 0..{below - 1}, it is {value!r}")
        return torch.tensor(values, dtype=torch.int64)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._get(name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise CorruptData(self.path, f"{name} should be a list of texts")
        return tuple(values)

    def _get(self, name: str) -> Any:
        if name not in self.content:
            raise CorruptData(self.path, f"it has no {name}, only {', '.join(self.content) or 'nothing'}")
        return self.content[name]
