"""The tensor's own bytes."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from .base import Codec


@dataclass(frozen=True, repr=False)
class Raw(Codec):
    """The tensor's own bytes, little endian, row by row."""

    tag: ClassVar[int] = 0

    def encode(self, tensor: Tensor) -> memoryview:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")

    def size(self, tensor: Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        wanted = prod(shape) * dtype.itemsize
        if len(data) != wanted:
            raise ValueError(f"{tuple(shape)} of {dtype} takes {wanted} bytes, the frame has {len(data)}")
        # A copy of its own: autograd counts versions per storage, and the frame's buffer will be reused.
        return (
            torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
            if wanted
            else torch.empty(shape, dtype=dtype)
        )
