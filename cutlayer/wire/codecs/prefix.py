"""Rows without the zeros at their ends."""

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import (
    counted,
    joined,
    on_host,
    pack,
    packed_size,
    placed,
    read_header,
    rows_of,
    unpack,
    values,
    words,
)

_HEADER = struct.Struct("<II")  # rows, length of a row
_COLUMNS = 16  # from the end that are read one by one
_BLOCK = 1 << 18  # rows that are unpacked at once; a multiple of 8, so that blocks start at whole bytes


@dataclass(frozen=True, repr=False)
class Prefix(Codec):
    """Rows along the last dimension without their trailing zeros: how much of each row is left, and its values.

    Rows of length n: 8 bytes, then ceil(log2(n + 1)) bits a row, then the values in order. Rows and length are there
    to notice a shape that was damaged on the way.
    """

    tag: ClassVar[int] = 2

    def encode(self, tensor: Tensor) -> memoryview:
        rows, length = rows_of(tuple(tensor.shape))
        found = on_host(tensor)
        kept = kept_lengths(torch.from_numpy(found).reshape(rows, length)).numpy()
        return joined(_HEADER.pack(rows, length), pack(kept, length.bit_length()), found[_places(kept, length)])

    def size(self, tensor: Tensor) -> int:
        rows, length = rows_of(tuple(tensor.shape))
        kept = int(kept_lengths(words(tensor).reshape(rows, length)).sum())
        return self.size_of(rows, length, kept, tensor.element_size())

    def size_of(self, rows: int, length: int, kept: int, each: int) -> int:
        """Bytes for rows of which `kept` values of `each` bytes are left in all."""
        return _HEADER.size + packed_size(rows, length.bit_length()) + kept * each

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        rows, length = read_header(_HEADER, data)
        if rows * length != counted(shape) or (rows, length) != rows_of(shape):
            raise ValueError(f"{tuple(shape)} does not have {rows} rows of {length}")
        start = _HEADER.size + packed_size(rows, length.bit_length())
        if len(data) < start:
            raise ValueError(f"the lengths of {rows} rows take {start} bytes, the frame has {len(data)}")
        if rows <= _BLOCK:
            kept = _kept(data[_HEADER.size : start], rows, length)
            _refuse_other_size(data, start + int(kept.sum()) * dtype.itemsize, rows)
            return placed(_places(kept, length), values(data[start:], dtype), dtype, shape)
        # A row takes few bits in the frame and tens of bytes while it is unpacked: a block at a time.
        tensor = torch.zeros(rows, length, dtype=dtype)
        for first in range(0, rows, _BLOCK):
            count, width = min(_BLOCK, rows - first), length.bit_length()
            begin = _HEADER.size + packed_size(first, width)
            kept = _kept(data[begin : begin + packed_size(count, width)], count, length)
            end = start + int(kept.sum()) * dtype.itemsize
            if end > len(data):
                raise ValueError(f"{rows} rows take more than the {len(data)} bytes there are")
            block = placed(_places(kept, length), values(data[start:end], dtype), dtype, (count, length))
            tensor[first : first + count] = block
            start = end
        _refuse_other_size(data, start, rows)
        return tensor.reshape(shape)


def _kept(data: memoryview, rows: int, length: int) -> NDArray[np.int64]:
    kept = unpack(data, rows, length.bit_length())
    if (kept > length).any():
        raise ValueError(f"a row of {length} cannot keep {kept.max()} values")
    return kept


def _refuse_other_size(data: memoryview, wanted: int, rows: int) -> None:
    if len(data) != wanted:
        raise ValueError(f"the values in {rows} rows take {wanted} bytes, not {len(data)}")


def kept_lengths(rows: Tensor) -> Tensor:
    """How much of each row of words is left without the zeros at its end. Counted on the device they are on."""
    length = rows.shape[1]
    if not rows.numel():
        return torch.zeros(len(rows), dtype=torch.int64)
    if rows.is_cpu:
        found, kept = rows.numpy(), np.full(len(rows), length)
        short = np.flatnonzero(found[:, -1] == 0)  # mostly few: the others are looked at no further
        # numpy stops at the first value it finds from the end, torch reads all of the row.
        is_kept = (found[short] != 0)[:, ::-1]
        zeros = is_kept.argmax(1)
        kept[short] = np.where(is_kept[np.arange(len(short)), zeros], length - zeros, 0)
        return torch.from_numpy(kept)
    positions = torch.arange(1, length + 1, dtype=torch.int32, device=rows.device)
    return ((rows != 0) * positions).amax(1).to(torch.int64)


def zeros_before_values(is_kept: NDArray[np.bool_], length: int) -> int:
    """How many zeros of the first third of the rows have a value right behind them: no ends of rows, for sure.

    Most tensors with zeros have them everywhere, which shows here in one look, along the memory.
    """
    some = is_kept[: len(is_kept) // (3 * length) * length]
    follows = np.count_nonzero(some[1:] > some[:-1])
    return int(follows) - int(np.count_nonzero(some[length::length] > some[length - 1 : -1 : length]))


def zeros_at_ends(rows: NDArray[Any], needed: int) -> int:
    """How many words at the ends of rows are zero; where it is sure that they are fewer than `needed`, some fewer.

    Column by column from the end: mostly the first few tell that there cannot be as many, and the rest is not read.
    """
    length, found = rows.shape[1], 0
    only_zeros = rows[:, -1] == 0  # so far, from the end
    for left in range(length, max(0, length - _COLUMNS), -1):
        short = int(np.count_nonzero(only_zeros))
        if found + short * left < needed:
            return found
        found += short
        if left > 1:
            only_zeros &= rows[:, left - 2] == 0
    if length <= _COLUMNS:
        return found
    return rows.size - int(kept_lengths(torch.from_numpy(rows)).sum())


def _places(kept: NDArray[np.int64], length: int) -> NDArray[Any]:
    """Flat positions of the values that are left. Takes memory for these, not for the whole tensor."""
    ends = np.cumsum(kept)
    first = length * np.arange(len(kept)) - (ends - kept)  # where a row starts, less what came before it
    return np.repeat(first, kept) + np.arange(ends[-1] if len(ends) else 0)
