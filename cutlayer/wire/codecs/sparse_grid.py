"""Few values on a grid, and zeros: where the values stand, and the small whole number of each."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..later import Later
from .base import Codec
from .parts.bits import flags, joined, nonzeros, on_host, packed_size, placed, read_header, words
from .parts.gridded import MOST_BITS, Gridded, claimed_grids, packed_codes, read_grids, unpacked_codes
from .parts.places import (
    BITMAP,
    form_of,
    packed_places,
    places_size,
    read_bitmap,
    read_places,
    refuse_other_form,
)

_HEADER = struct.Struct("<BBBIII")  # bits, grids (0: one for all rows), form of the places, rows, length, values


@dataclass(frozen=True)
class SparseGridded:
    """A grid whose zeros stay home. `value` is what the grid stands for, in its own type: its zeros are left out."""

    grid: Gridded
    value: Tensor
    tag: ClassVar[int] = 10

    def size(self) -> int:
        return _size(self.value.numel(), self.grid.grids_size(), self.grid.bits, [self.kept])

    def size_later(self) -> Later:
        # Numbers, not the tensors they are of: these are not to be kept until somebody asks.
        known = self.value.numel(), self.grid.grids_size(), self.grid.bits
        return Later((torch.count_nonzero(self.value),), partial(_size, *known))

    def encode(self) -> memoryview:
        grid, is_kept = self.grid, on_host(self.value) != 0
        at: NDArray[np.int64] = is_kept.nonzero()[0]
        form = form_of(len(is_kept), len(at))
        codes = grid.codes.detach().cpu().reshape(-1).numpy().take(at)
        header = _HEADER.pack(grid.bits, grid.begin.numel() != 1, form, *grid.codes.shape, len(at))
        return joined(header, *grid.grids(), packed_places(is_kept, at, form), packed_codes(codes, grid.bits))

    @cached_property
    def kept(self) -> int:
        """How many values are not zero."""
        # There is no -0.0 on a grid: 0 · step + begin is none. So values are zero where their words are.
        return int(np.count_nonzero(on_host(self.value))) if self.value.is_cpu else nonzeros(words(self.value))


def _size(elements: int, grids: int, bits: int, counts: Sequence[int]) -> int:
    (kept,) = counts
    return _HEADER.size + grids + places_size(elements, kept, form_of(elements, kept)) + packed_size(kept, bits)


def _all_but(at: NDArray[np.int64], is_kept: NDArray[np.bool_], codes: Tensor, grid: Gridded) -> Tensor:
    """Zeros but for these codes on an empty grid. Many values are read faster in rows than one by one."""
    grid.codes.view(-1).numpy()[at] = codes.numpy()
    value = grid.value()
    found = on_host(value)
    found *= is_kept  # words times 0 or 1: what is not finite becomes zero, too
    return value


@dataclass(frozen=True, repr=False)
class SparseGrid(Codec):
    """Few bits for each value on a grid, none for zeros. Only who made the grid can write it: this encodes nothing.

    n elements, m of them not zero: 15 bytes, the grids, the smaller of n bits and m indices of ceil(log2 n) bits,
    then the m codes in order.
    """

    tag: ClassVar[int] = 10

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("a grid is not looked for: whoever made it prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        bits, each, form, rows, length, kept = read_header(_HEADER, data)
        grids, taken = claimed_grids(bits, MOST_BITS, each, rows, length, dtype, shape)
        refuse_other_form(rows * length, kept, form)
        places_at = _HEADER.size + taken
        codes_at = places_at + places_size(rows * length, kept, form)
        wanted = codes_at + packed_size(kept, bits)
        if len(data) != wanted:
            raise ValueError(
                f"{kept} values of {rows} rows on {grids} grids take {wanted} bytes, the frame has {len(data)}"
            )
        begin, step = read_grids(data[_HEADER.size : places_at], dtype)
        codes = torch.from_numpy(unpacked_codes(data[codes_at:], kept, bits))
        if form == BITMAP and shape:
            is_kept = flags(data[places_at:codes_at], rows * length)
            at = read_bitmap(is_kept, kept)
            empty = Gridded(codes.new_zeros(rows, length), begin, step, bits)
            return _all_but(at, is_kept, codes, empty).to(dtype).reshape(shape)
        at = read_places(data[places_at:codes_at], rows * length, kept, form)
        row = torch.from_numpy(at // max(length, 1) if each else np.zeros_like(at))
        # Each value is a row of one on its row's grid, so it is rounded as `Gridded` rounds.
        found = Gridded(codes[:, None], begin[row], step[row], bits).value()
        return placed(at, on_host(found), found.dtype, shape).to(dtype)
