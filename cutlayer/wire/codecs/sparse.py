"""Where the non-zero values stand, and the values."""

import struct
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Codec
from .parts.bits import counted, joined, nonzeros, on_host, placed, read_header, values, words
from .parts.places import form_of, packed_places, places_size, read_places, refuse_other_form, smallest_places

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
        at = is_kept.nonzero()[0]  # taking by index is several times as fast as taking by mask
        form = form_of(len(found), len(at))
        return joined(_HEADER.pack(form, len(found), len(at)), packed_places(is_kept, at, form), found.take(at))

    def size(self, tensor: Tensor) -> int:
        return self.size_of(tensor.numel(), nonzeros(words(tensor)), tensor.element_size())

    def size_of(self, elements: int, kept: int, each: int) -> int:
        """Bytes for `kept` non-zero values of `each` bytes among `elements`."""
        return _HEADER.size + smallest_places(elements, kept) + kept * each

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        form, elements, kept = read_header(_HEADER, data)
        if elements != counted(shape):
            raise ValueError(f"{tuple(shape)} is not a shape of {elements} elements")
        refuse_other_form(elements, kept, form)
        start = _HEADER.size + places_size(elements, kept, form)
        if len(data) != start + kept * dtype.itemsize:
            raise ValueError(
                f"{kept} values of {dtype} and their places take {start + kept * dtype.itemsize} bytes, "
                f"the frame has {len(data)}"
            )
        at = read_places(data[_HEADER.size : start], elements, kept, form)
        return placed(at, values(data[start:], dtype), dtype, shape)
