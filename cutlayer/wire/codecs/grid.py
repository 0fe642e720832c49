"""Values that stand on a grid: small whole numbers, and where each grid begins and how wide its steps are."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Codec
from .parts.bits import packed_size, read_header
from .parts.gridded import _HEADER, MOST_BITS, Gridded, claimed_grids, read_grids, unpacked_codes


@dataclass(frozen=True, repr=False)
class Grid(Codec):
    """Whole numbers of few bits on a grid of floats. Only who made the grid can write it, so this encodes nothing."""

    tag: ClassVar[int] = 3

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("a grid is not looked for: whoever made it prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        bits, each, rows, length = read_header(_HEADER, data)
        grids, taken = claimed_grids(bits, MOST_BITS, each, rows, length, dtype, shape)
        start = _HEADER.size + taken
        wanted = start + packed_size(rows * length, bits)
        if len(data) != wanted:
            raise ValueError(
                f"{rows} rows of {length} on {grids} grids take {wanted} bytes, the frame has {len(data)}"
            )
        codes = unpacked_codes(data[start:], rows * length, bits).reshape(rows, length)
        begin, step = read_grids(data[_HEADER.size : start], dtype)
        return Gridded(torch.from_numpy(codes), begin, step, bits).value().to(dtype).reshape(shape)
