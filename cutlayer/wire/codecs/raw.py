"""The tensor's own bytes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Codec
from .parts.bits import from_own_bytes, own_bytes


@dataclass(frozen=True, repr=False)
class Raw(Codec):
    """The tensor's own bytes, little endian, row by row."""

    tag: ClassVar[int] = 0

    def encode(self, tensor: Tensor) -> memoryview:
        return own_bytes(tensor)

    def size(self, tensor: Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        return from_own_bytes(data, dtype, shape)
