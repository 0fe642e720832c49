"""Codes of a grid that are not all equally frequent: fewer bits for the frequent ones (ANS, by `constriction`)."""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import joined, read_header
from .parts.entropy_coder import library
from .parts.gridded import Gridded, claimed_grids, read_grids

_HEADER = struct.Struct("<BBIII")  # bits, grids (0: one for all rows), rows, length of a row, words
MOST_BITS = 8  # of a code: a table of frequencies travels too
_WHOLE = 1 << 15  # what frequencies are measured in


@dataclass(frozen=True)
class Coded:
    """A grid whose codes are entropy coded; frequencies travel with them, two bytes a level."""

    grid: Gridded
    tag: ClassVar[int] = 6

    def size(self) -> int:
        return _HEADER.size + self.grid.grids_size() + 2 * (1 << self.grid.bits) + 4 * len(self._words[1])

    def encode(self) -> memoryview:
        grid, (table, words) = self.grid, self._words
        header = _HEADER.pack(grid.bits, len(grid.begin) != 1, *grid.codes.shape, len(words))
        return joined(header, *grid.grids(), table.astype("<u2").view(np.uint8), words.astype("<u4").view(np.uint8))

    @cached_property
    def _words(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        codes = self.grid.codes.detach().cpu().reshape(-1).numpy().astype(np.int32)
        table = _frequencies(codes, 1 << self.grid.bits)
        return table, _encoded(codes, table)


@dataclass(frozen=True, repr=False)
class Entropy(Codec):
    """Entropy-coded codes on a grid of floats. Only who made the grid can write it, so this encodes nothing."""

    tag: ClassVar[int] = 6

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("a grid is not looked for: whoever made it prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        bits, each, rows, length, count = read_header(_HEADER, data)
        _, taken = claimed_grids(bits, MOST_BITS, each, rows, length, dtype, shape)
        table_at = _HEADER.size + taken
        words_at = table_at + 2 * (1 << bits)
        if len(data) != words_at + 4 * count:
            raise ValueError(f"a coded grid of {words_at + 4 * count} bytes, the frame has {len(data)}")
        begin, step = read_grids(data[_HEADER.size : table_at], dtype)
        table = np.frombuffer(data[table_at:words_at], dtype="<u2").astype(np.int64)
        words = np.frombuffer(data[words_at:], dtype="<u4").astype(np.uint32)
        codes = torch.from_numpy(_decoded(words, table, rows * length).reshape(rows, length))
        return Gridded(codes, begin, step, bits).value().to(dtype).reshape(shape)


def _decoded(words: NDArray[np.uint32], table: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    if not count:
        if len(words):
            raise ValueError("words without anything to decode")
        return np.empty(0, dtype=np.int32)
    if not table.all() or (len(words) and not words[-1]):
        raise ValueError("a table with an empty level, or a last word that is none")
    coder = library().stream.stack.AnsCoder(words)
    codes: NDArray[np.int32] = coder.decode(_model(table), count)
    # A coder without redundancy decodes any words to something; what is left over shows that they were too many.
    if not coder.is_empty():
        raise ValueError(f"more words than {count} codes take")
    return codes


def _encoded(codes: NDArray[np.int32], table: NDArray[np.int64]) -> NDArray[np.uint32]:
    coder = library().stream.stack.AnsCoder()
    if len(codes):
        coder.encode_reverse(codes, _model(table))
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


def _frequencies(codes: NDArray[np.int32], levels: int) -> NDArray[np.int64]:
    """How often each level comes, as shares of `_WHOLE`; none is zero, so that all can be decoded."""
    found = np.bincount(codes, minlength=levels) / max(1, len(codes))
    return np.maximum(1, np.round(found * _WHOLE)).astype(np.int64)


def _model(table: NDArray[np.int64]) -> Any:
    shares = table.astype(np.float64) / table.sum()
    return library().stream.model.Categorical(shares.astype(np.float32), perfect=False)
