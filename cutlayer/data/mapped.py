"""Arrays in .npy files that stay there: the rows of a batch are read when they are asked for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import CorruptData
from .room import image_memory
from .rows import Rows, Store, as_tensor

Convert = Callable[[Path, np.ndarray], Tensor]


class Mapped(Store):
    """Rows of one file, as `convert` makes them of what is in it."""

    def __init__(self, path: Path, convert: Convert):
        self.path, self.convert = path, convert
        first = convert(path, np.array(mapped(path)[:1]))
        self.shape, self.dtype = tuple(first.shape[1:]), first.dtype

    def __len__(self) -> int:
        return len(mapped(self.path))

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        return partial(_rows, self.path, self.convert, which)


def mapped(path: Path) -> np.ndarray:
    """What is in a file, none of it read yet."""
    # Pickled objects could run code; plain arrays cannot.
    return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def _rows(path: Path, convert: Convert, which: Tensor) -> Tensor:
    rows = convert(path, mapped(path)[which.numpy()])
    if rows.is_floating_point() and not (rows.min() >= 0 and rows.max() <= 1):
        raise CorruptData(path, "images given as floats must lie in [0, 1], and some of these do not")
    return rows


def kept(path: Path, array: np.ndarray, convert: Convert, item: int) -> Tensor:
    """An array of `path`; it stays in its file where, with `item` bytes a number, it does not fit into memory."""
    if not isinstance(array, np.memmap) or array.size * item <= image_memory():
        return convert(path, np.array(array) if isinstance(array, np.memmap) else array)
    return as_tensor(Rows(Mapped(path, convert)))


def present(values: Tensor) -> Tensor:
    """Which numbers there are, each once."""
    if not isinstance(values, Rows):
        return values.unique()
    found = [values[some].unique() for some in torch.arange(len(values)).split(64)]
    return torch.cat(found).unique()
