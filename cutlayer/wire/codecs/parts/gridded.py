"""Numbers on a grid as whole-number codes: packed, unpacked and read back."""

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....core.layout import in_rows
from ....core.lost_numbers import finite
from .bits import counted, joined, pack, packed_size, unpack

_HEADER = struct.Struct("<BBII")  # bits, grids (0: one for all rows), rows, length of a row


_BLOCK = 1 << 18  # numbers that are unpacked at once; a multiple of 8, so that blocks start at whole bytes


MOST_BITS = 16


@dataclass(frozen=True)
class Gridded:
    """The bytes of `begin + codes * step`: codes of `bits` bits, one (begin, step) for all rows or for each.

    Both are of the `grid_type` of the tensor that they are for.
    """

    codes: Tensor  # rows x length, whole numbers below 2^bits
    begin: Tensor  # rows, or one
    step: Tensor
    bits: int
    tag: ClassVar[int] = 3

    def value(self) -> Tensor:
        """The tensor itself, rows x length."""
        return on_grid(self.codes.to(self.step, copy=True), self.begin, self.step)

    def size(self) -> int:
        return _HEADER.size + self.grids_size() + packed_size(self.codes.numel(), self.bits)

    def grids_size(self) -> int:
        return 2 * self.begin.numel() * self.begin.element_size()

    def grids(self) -> list[NDArray[np.uint8]]:
        """The bytes of where grids begin and of their steps."""
        return [in_rows(one.detach().cpu()).view(torch.uint8).numpy() for one in (self.begin, self.step)]

    def encode(self) -> memoryview:
        rows, length = self.codes.shape
        header = _HEADER.pack(self.bits, self.begin.numel() != 1, rows, length)
        codes = self.codes.detach().cpu().reshape(-1).numpy()
        return joined(header, *self.grids(), packed_codes(codes, self.bits))


def grid_type(dtype: torch.dtype) -> torch.dtype:
    """What a grid is reckoned in. Numbers of two bytes hold neither all codes nor their products: float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def on_grid(codes: Tensor, begin: Tensor, step: Tensor) -> Tensor:
    """What codes stand for, written over them. Two roundings, in this order, on every machine."""
    return codes.mul_(step[:, None]).add_(begin[:, None])


def claimed_grids(
    bits: int, most: int, each: int, rows: int, length: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> tuple[int, int]:
    """How many grids a buffer claims to have, and their bytes, if all it claims fits together and to the shape of its
    tensor."""
    if not dtype.is_floating_point or not 1 <= bits <= most or each > 1:
        raise ValueError(f"a grid of {dtype} with {bits} bits in form {each}")
    if rows * length != counted(shape) or (shape and rows != shape[0]):
        raise ValueError(f"{tuple(shape)} are not {rows} rows of {length}")
    grids = rows if each else 1
    return grids, 2 * grids * grid_type(dtype).itemsize


def read_grids(data: memoryview, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Where the grids of a tensor of this type begin, and their steps."""
    own = grid_type(dtype)
    both = torch.frombuffer(bytearray(data), dtype=own) if len(data) else torch.empty(0, dtype=own)
    if not finite(both):
        raise ValueError("a grid that begins or steps outside of the numbers")
    grids = both.numel() // 2
    return both[:grids], both[grids:]


def packed_codes(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Codes one after the other, the lowest bit first."""
    if bits == 8:
        return codes.astype(np.uint8)
    if bits == 16:
        return codes.astype("<u2").view(np.uint8)
    if bits in (1, 2, 4):
        per = 8 // bits
        if len(codes) % per:
            whole = np.zeros(-(-len(codes) // per) * per, dtype=np.uint8)
            whole[: len(codes)] = codes
        else:
            whole = codes.astype(np.uint8)
        words = whole.view(f"<u{per}")  # a code a byte: all of a word move down into its lowest one
        packed = words.astype(np.uint8)
        for lane in range(1, per):
            packed |= (words >> words.dtype.type((8 - bits) * lane)).astype(np.uint8)
        return packed
    return pack(codes.astype(np.int64), bits)


@cache
def _lanes(bits: int) -> NDArray[Any]:
    """For every byte the codes in it, a byte each and all of them in one word: a table is faster than shifting."""
    lanes = np.arange(256, dtype=np.uint8)[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)
    return (lanes & np.uint8((1 << bits) - 1)).view(f"u{8 // bits}").reshape(256)


def unpacked_codes(data: memoryview, count: int, bits: int) -> NDArray[Any]:
    """The inverse of `packed_codes`. What fills the last byte has to be zero."""
    if bits == 8:
        return np.frombuffer(data, dtype=np.uint8).copy()
    if bits == 16:
        return np.frombuffer(data, dtype="<u2").astype(np.int32)
    if bits in (1, 2, 4):
        codes = _lanes(bits).take(np.frombuffer(data, dtype=np.uint8)).view(np.uint8)
        if any(codes[count:].tolist()):
            raise ValueError(f"{count} codes of {bits} bits were expected, padded with zeros to whole bytes")
        return codes[:count]
    # A number takes tens of bytes while it is unpacked: a block at a time.
    found: NDArray[np.int32] = np.empty(count, dtype=np.int32)
    for first in range(0, count, _BLOCK):
        end = min(first + _BLOCK, count)
        found[first:end] = unpack(data[packed_size(first, bits) : packed_size(end, bits)], end - first, bits)
    return found
