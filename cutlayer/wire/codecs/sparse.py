"""Where the non-zero values stand, and the values."""

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .base import Codec
from .parts.bits import (
    counted,
    flags,
    joined,
    nonzeros,
    on_host,
    pack,
    packed_size,
    placed,
    read_header,
    unpack,
    values,
    words,
)

_BITMAP, _INDICES = 0, 1
_HEADER = struct.Struct("<BII")  # form, elements, non-zero values


@dataclass(frozen=True, repr=False)
class Sparse(Codec):
    """Non-zero values and where they stand: a bit for every element, or their indices, whichever is smaller.

    n elements, m of them not zero: 9 bytes, then the smaller of n bits and m indices of ceil(log2 n) bits, then the m
    values in order. The number of elements is there to notice a shape that was damaged on the way.
    """

    tag: ClassVar[int] = 1

    def encode(self, tensor: Tensor) -> memoryview:
        found = on_host(tensor)
        is_kept = found != 0
        at = np.flatnonzero(is_kept)  # taking by index is several times as fast as taking by mask
        form = _form(len(found), len(at))
        places = np.packbits(is_kept, bitorder="little") if form == _BITMAP else pack(at, _width(len(found)))
        return joined(_HEADER.pack(form, len(found), len(at)), places, found[at])

    def size(self, tensor: Tensor) -> int:
        return self.size_of(tensor.numel(), nonzeros(words(tensor)), tensor.element_size())

    def size_of(self, elements: int, kept: int, each: int) -> int:
        """Bytes for `kept` non-zero values of `each` bytes among `elements`."""
        return _HEADER.size + _places(elements, kept, _form(elements, kept)) + kept * each

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        form, elements, kept = read_header(_HEADER, data)
        if elements != counted(shape):
            raise ValueError(f"{tuple(shape)} is not a shape of {elements} elements")
        # The larger form is never written. Refusing it keeps the work of unpacking within a few times the tensor.
        if kept > elements or form != _form(elements, kept):
            raise ValueError(f"{kept} of {elements} elements are not written in form {form}")
        start = _HEADER.size + _places(elements, kept, form)
        if len(data) != start + kept * dtype.itemsize:
            raise ValueError(
                f"{kept} values of {dtype} and their places take {start + kept * dtype.itemsize} bytes, "
                f"the frame has {len(data)}"
            )
        places = data[_HEADER.size : start]
        if form == _BITMAP:
            at = np.flatnonzero(flags(places, elements))
            if len(at) != kept:
                raise ValueError(f"the bitmap has {len(at)} places for {kept} values")
        else:
            at = unpack(places, kept, _width(elements))
            if kept and (at[-1] >= elements or (at[1:] <= at[:-1]).any()):
                raise ValueError(f"indices have to increase and stay below {elements}")
        return placed(at, values(data[start:], dtype), dtype, shape)


def _width(elements: int) -> int:
    """ceil(log2 n): bits of an index."""
    return max(elements - 1, 0).bit_length()


def _places(elements: int, kept: int, form: int) -> int:
    return packed_size(elements, 1) if form == _BITMAP else packed_size(kept, _width(elements))


def _form(elements: int, kept: int) -> int:
    smaller = _places(elements, kept, _INDICES) < _places(elements, kept, _BITMAP)
    return _INDICES if smaller else _BITMAP
