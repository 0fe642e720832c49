"""Columns of a batch, each on a grid of its own or as its mean alone; columns that are not there are zeros."""

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import counted, joined, packed_size, read_header

_HEADER = struct.Struct("<BBIII")  # form of the places, bits of an end, rows, length of a row, columns that came
_BITMAP, _INDICES = 0, 1
_GRIDS = 4 * 4  # four float32: where means begin and their step, where ends begin and their step
_WIDTH = 4  # bits that say how many bits a column's codes have
MOST_WIDTH = (1 << _WIDTH) - 1
MOST_ENDS = 16


@dataclass(frozen=True)
class Columned:
    """The bytes of some columns: codes of 1 to 15 bits between two ends, or (0 bits) one number for all rows.

    Ends and means are themselves codes of `ends` bits, on two grids for the whole batch.
    """

    at: Tensor  # which columns came, increasing
    widths: Tensor  # bits of the codes of each
    means: Tensor  # a code for each column of width 0
    low: Tensor  # two codes for each of the others
    high: Tensor
    codes: Tensor  # of the others, columns x rows
    grids: Tensor  # four float32
    ends: int
    rows: int
    length: int
    dtype: torch.dtype
    tag: ClassVar[int] = 4

    def value(self) -> Tensor:
        """The tensor itself, rows x length. The same roundings in the same order on every machine."""
        grids = self.grids.to(self.dtype)
        begin, step = between(self.low, self.high, self.widths[self.widths > 0], grids)
        tensor = torch.zeros(self.rows, self.length, dtype=self.dtype, device=self.at.device)
        tensor[:, self.at[self.widths > 0]] = (self.codes.to(self.dtype) * step[:, None] + begin[:, None]).T
        tensor[:, self.at[self.widths == 0]] = self.means.to(self.dtype) * grids[1] + grids[0]
        return tensor

    def size(self) -> int:
        bits = fixed_bits(self.length, len(self.at), len(self.low), self.ends) + self.rows * int(self.widths.sum())
        return packed_size(bits, 1)

    def encode(self) -> memoryview:
        at, widths = _host(self.at), _host(self.widths)
        form = _form(self.length, len(at))
        header = _HEADER.pack(form, self.ends, self.rows, self.length, len(at))
        if form == _BITMAP:
            places = np.zeros(self.length, dtype=np.uint8)
            places[at] = 1
        else:
            places = _bits(at, _index_width(self.length))
        codes, own = _host(self.codes), widths[widths > 0]
        stream = [places, _bits(widths, _WIDTH)]
        stream += [_bits(_host(one), self.ends) for one in (self.means, self.low, self.high)]
        stream += [_bits(codes[own == width].reshape(-1), width) for width in np.unique(own).tolist()]
        packed = np.packbits(np.concatenate(stream), bitorder="little")
        return joined(header, self.grids.cpu().numpy().astype("<f4").tobytes(), packed)


@dataclass(frozen=True, repr=False)
class Columns(Codec):
    """Columns with as many levels as each is worth. Only who chose them can write it, so this encodes nothing."""

    tag: ClassVar[int] = 4

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("levels of columns are not looked for: whoever chose them prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        form, ends, rows, length, kept = read_header(_HEADER, data)
        if dtype not in (torch.float32, torch.float64) or not 1 <= ends <= MOST_ENDS:
            raise ValueError(f"columns of {dtype} with ends of {ends} bits")
        if rows * length != counted(shape) or not shape or rows != shape[0]:
            raise ValueError(f"{tuple(shape)} are not {rows} rows of {length}")
        if kept > length or form != _form(length, kept):
            raise ValueError(f"{kept} of {length} columns are not written in form {form}")
        start = _HEADER.size + _GRIDS
        if len(data) < packed_size(fixed_bits(length, kept, 0, ends), 1):
            raise ValueError(f"{kept} of {length} columns take more than the {len(data)} bytes there are")
        grids = torch.frombuffer(bytearray(data[_HEADER.size : start]), dtype=torch.float32)
        if not torch.isfinite(grids).all():
            raise ValueError("a grid that begins or steps outside of the numbers")
        bits = _Bits(np.unpackbits(np.frombuffer(data[start:], dtype=np.uint8), bitorder="little"))
        at = _places(bits, form, length, kept)
        widths = bits.numbers(kept, _WIDTH)
        own = widths[widths > 0]
        whole = fixed_bits(length, kept, len(own), ends) + rows * int(own.sum())
        if len(data) != packed_size(whole, 1):
            raise ValueError(f"these columns take {packed_size(whole, 1)} bytes, the frame has {len(data)}")
        means, low, high = (bits.numbers(count, ends) for count in (kept - len(own), len(own), len(own)))
        if (high < low).any():
            raise ValueError("a column that ends before it begins")
        codes = np.empty((len(own), rows), dtype=np.int64)
        for width in np.unique(own).tolist():
            codes[own == width] = bits.numbers(int((own == width).sum()) * rows, width).reshape(-1, rows)
        if bits.rest().any():
            raise ValueError("bits behind the last code: zeros fill the last byte")
        came = Columned(
            at=torch.from_numpy(at),
            widths=torch.from_numpy(widths),
            means=torch.from_numpy(means),
            low=torch.from_numpy(low),
            high=torch.from_numpy(high),
            codes=torch.from_numpy(codes),
            grids=grids,
            ends=ends,
            rows=rows,
            length=length,
            dtype=dtype,
        )
        return came.value().reshape(shape)


def between(low: Tensor, high: Tensor, widths: Tensor, grids: Tensor) -> tuple[Tensor, Tensor]:
    """(where it begins, its step) of each column, from the codes of its two ends."""
    first, last = (code.to(grids) * grids[3] + grids[2] for code in (low, high))
    return first, (last - first) / ((1 << widths) - 1).to(grids)


def fixed_bits(length: int, kept: int, graded: int, ends: int) -> int:
    """Bits of `kept` columns of `length`, `graded` of them with two ends, without their codes; header and all."""
    return 8 * (_HEADER.size + _GRIDS) + place_bits(length, kept) + _WIDTH * kept + ends * (kept + graded)


def place_bits(length: int, kept: int) -> int:
    """A bit for every column, or the indices of those that came, whichever is smaller."""
    return min(length, kept * _index_width(length))


def _form(length: int, kept: int) -> int:
    return _INDICES if kept * _index_width(length) < length else _BITMAP


def _index_width(length: int) -> int:
    return max(length - 1, 0).bit_length()


def _host(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.detach().cpu().numpy().astype(np.int64)


def _bits(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """The lowest `width` bits of each number, one after the other."""
    whole = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.unpackbits(whole, axis=1, bitorder="little")[:, :width].reshape(-1)


def _places(bits: "_Bits", form: int, length: int, kept: int) -> NDArray[np.int64]:
    if form == _BITMAP:
        at = np.flatnonzero(bits.take(length))
        if len(at) != kept:
            raise ValueError(f"the bitmap has {len(at)} places for {kept} columns")
        return at
    at = bits.numbers(kept, _index_width(length))
    if kept and (at[-1] >= length or (at[1:] <= at[:-1]).any()):
        raise ValueError(f"columns have to increase and stay below {length}")
    return at


class _Bits:
    """Reads a row of bits from its beginning."""

    def __init__(self, bits: NDArray[np.uint8]):
        self._bits, self._next = bits, 0

    def take(self, count: int) -> NDArray[np.uint8]:
        found = self._bits[self._next : self._next + count]
        self._next += count
        return found

    def numbers(self, count: int, width: int) -> NDArray[Any]:
        whole = np.zeros((count, 4), dtype=np.uint8)
        if width:
            packed = np.packbits(self.take(count * width).reshape(count, width), axis=1, bitorder="little")
            whole[:, : packed.shape[1]] = packed
        return whole.view("<u4").reshape(-1).astype(np.int64)

    def rest(self) -> NDArray[np.uint8]:
        return self._bits[self._next :]
