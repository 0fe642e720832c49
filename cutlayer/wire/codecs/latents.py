"""Whole numbers around zero, each with a spread that a few others tell: the entropy coding of a learned bottleneck.

After Ballé et al. (2018), "Variational image compression with a scale hyperprior", with one difference. There a
network at the receiver makes the spreads out of the hyper-latents; here the receiver of bytes has no network, and two
machines must agree on every bit. So this step is a small map of whole numbers (Ballé et al., 2019, "Integer
networks", show why), and it travels in every buffer: a byte for each channel, one more for each hyper-channel, and
one for each pair of them.
"""

import struct
from dataclasses import dataclass
from functools import cache, cached_property
from math import erf, exp, log, sqrt
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import counted, joined, read_header
from .parts.entropy_coder import library

# Hyper-channels, how many places they stand for along each side, channels, height, width, rows, words.
_HEADER = struct.Struct("<BBHHHII")
TABLES = 64  # spreads
SMALLEST, LARGEST = 0.11, 32.0  # of them
LIMIT = 127  # of a number
UNIT = 8  # a weight of 1 is written as this
MOST_HYPER, MOST_SIDE = 16, 65535  # channels, and any side of the maps
_WHOLE = 1 << 20  # what frequencies are measured in
STEP = log(LARGEST / SMALLEST) / (TABLES - 1)  # from one spread to the next, in log


@dataclass(frozen=True)
class Spreads:
    """The map from hyper-latents to the table of each number, as it travels."""

    own: NDArray[np.uint8]  # hyper-channels: the table that each of them is coded with
    base: NDArray[np.uint8]  # channels: the table where all hyper-latents are 0
    weight: NDArray[np.int8]  # channels x hyper-channels: how many tables, in units of 1/UNIT, a hyper-latent adds
    coarse: int = 1  # this many places along each side share their hyper-latents

    def coarse_sides(self, height: int, width: int) -> tuple[int, int]:
        return -(-height // self.coarse), -(-width // self.coarse)

    def tables(self, hyper: NDArray[np.int64], height: int, width: int) -> NDArray[np.uint8]:
        """Rows x channels x height x width: which table codes each number."""
        added = np.einsum("cg,nghw->nchw", self.weight.astype(np.int64), hyper)
        # Whole numbers all the way: the same on every machine.
        which = self.base[:, None, None].astype(np.int64) + ((added + UNIT // 2) // UNIT)
        which = np.clip(which, 0, TABLES - 1).astype(np.uint8)
        return which[:, :, np.arange(height)[:, None] // self.coarse, np.arange(width) // self.coarse]


@dataclass(frozen=True)
class Latent:
    """The bytes of whole numbers and of their hyper-latents, which the decoder needs and nobody else."""

    numbers: Tensor  # rows x channels x height x width, from -LIMIT to LIMIT
    hyper: Tensor  # rows x hyper-channels x coarse height x coarse width, as well
    spreads: Spreads
    tag: ClassVar[int] = 7

    def size(self) -> int:
        return _HEADER.size + _map_size(len(self.spreads.own), self.numbers.shape[1]) + 4 * len(self._words)

    def encode(self) -> memoryview:
        spreads = self.spreads
        rows, *sides = self.numbers.shape
        header = _HEADER.pack(len(spreads.own), spreads.coarse, *sides, rows, len(self._words))
        parts = (spreads.own.tobytes(), spreads.base.tobytes(), spreads.weight.tobytes())
        return joined(header, *parts, self._words.astype("<u4").view(np.uint8))

    @cached_property
    def _words(self) -> NDArray[np.uint32]:
        numbers, hyper = (one.detach().cpu().numpy().astype(np.int64) for one in (self.numbers, self.hyper))
        which = self.spreads.tables(hyper, *numbers.shape[2:]).reshape(-1)
        coder = library().stream.stack.AnsCoder()
        # A stack: what is read first is written last.
        _push(coder, numbers.reshape(-1), which)
        _push(coder, hyper.reshape(-1), _spread_out(self.spreads.own, hyper.shape))
        words: NDArray[np.uint32] = coder.get_compressed()
        return words


@dataclass(frozen=True, repr=False)
class Latents(Codec):
    """Whole numbers with spreads told by hyper-latents. Only who made them can write it, so this encodes nothing."""

    tag: ClassVar[int] = 7

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("latents are not looked for: whoever made them prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        hypers, coarse, channels, height, width, rows, count = read_header(_HEADER, data)
        if not dtype.is_floating_point or tuple(shape) != (rows, channels, height, width):
            raise ValueError(f"latents of {(rows, channels, height, width)} for {dtype} of {tuple(shape)}")
        if hypers > min(MOST_HYPER, channels) or not coarse:
            raise ValueError(f"{hypers} hyper-channels for {channels}, each standing for {coarse} places")
        counted(shape)
        words_at = _HEADER.size + _map_size(hypers, channels)
        if len(data) != words_at + 4 * count:
            raise ValueError(f"latents of {words_at + 4 * count} bytes, the frame has {len(data)}")
        spreads = _read_map(data[_HEADER.size : words_at], hypers, channels, coarse)
        words = np.frombuffer(data[words_at:], dtype="<u4").astype(np.uint32)
        return torch.from_numpy(_read(words, spreads, shape)).to(dtype)


def _read(words: NDArray[np.uint32], spreads: Spreads, shape: tuple[int, ...]) -> NDArray[np.int64]:
    rows, _, height, width = shape
    if len(words) and not words[-1]:
        raise ValueError("a last word that is none")
    coder = library().stream.stack.AnsCoder(words)
    grid = (rows, len(spreads.own), *spreads.coarse_sides(height, width))
    hyper = _pop(coder, _spread_out(spreads.own, grid)).reshape(grid)
    numbers = _pop(coder, spreads.tables(hyper, height, width).reshape(-1)).reshape(shape)
    # A coder without redundancy decodes any words to something; what is left over shows that they were too many.
    if not coder.is_empty():
        raise ValueError(f"more words than the {numbers.size} numbers take")
    return numbers


def _spread_out(own: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The table of each hyper-latent, in their order."""
    return np.broadcast_to(own[:, None, None], shape).reshape(-1)


def _push(coder: Any, numbers: NDArray[np.int64], which: NDArray[np.uint8]) -> None:
    """Table by table, the last one first: one call for all numbers that share a table."""
    order, groups = _by_table(which)
    for table, begin, end in reversed(groups):
        coder.encode_reverse((numbers[order[begin:end]] + LIMIT).astype(np.int32), _model(table))


def _pop(coder: Any, which: NDArray[np.uint8]) -> NDArray[np.int64]:
    order, groups = _by_table(which)
    found = np.empty(len(which), dtype=np.int64)
    for table, begin, end in groups:
        found[order[begin:end]] = coder.decode(_model(table), end - begin).astype(np.int64) - LIMIT
    return found


def _by_table(which: NDArray[np.uint8]) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
    """An order in which equal tables stand together, and (table, from, to) for each that is used."""
    ends = np.cumsum(np.bincount(which, minlength=TABLES))
    groups = [(t, int(ends[t - 1]) if t else 0, int(ends[t])) for t in range(TABLES)]
    return np.argsort(which, kind="stable"), [group for group in groups if group[1] < group[2]]


def spread(table: float) -> float:
    return SMALLEST * exp(STEP * table)


def table_of(spread: float) -> float:
    """Between tables as well."""
    return log(spread / SMALLEST) / STEP


@cache
def frequencies(table: int) -> NDArray[np.int64]:
    """A normal distribution rounded to whole numbers, in shares of about _WHOLE; no number from -LIMIT to LIMIT has
    none. Float64 and rounding: no share stands where another library's last bits would round it differently (tested).
    """
    return np.maximum(1, np.round(_shares(table) * _WHOLE)).astype(np.int64)


def _shares(table: int) -> NDArray[np.float64]:
    ends = [erf((number - 0.5) / (spread(table) * sqrt(2))) / 2 for number in range(-LIMIT, LIMIT + 2)]
    return np.diff(np.array(ends, dtype=np.float64))


@cache
def _model(table: int) -> Any:
    found = frequencies(table).astype(np.float64)
    return library().stream.model.Categorical((found / found.sum()).astype(np.float32), perfect=False)


def _map_size(hypers: int, channels: int) -> int:
    return hypers + channels + channels * hypers


def _read_map(data: memoryview, hypers: int, channels: int, coarse: int) -> Spreads:
    found = np.frombuffer(data, dtype=np.uint8)
    own, base, weight = np.split(found, [hypers, hypers + channels])
    if (found[: hypers + channels] >= TABLES).any():
        raise ValueError(f"a table that is none of the {TABLES}")
    return Spreads(own, base, weight.view(np.int8).reshape(channels, hypers), coarse)
