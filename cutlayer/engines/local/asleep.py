"""What a client keeps while its network is given up: all its numbers in one array."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.state import State
from ...wire.codecs.parts.bits import on_host, values


class Layout:
    """Names, shapes and types of one client's state: alike for all clients of a plan, so it is kept once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def of(self, state: Mapping[str, Tensor]) -> tuple[Any, ...]:
        found = tuple((name, tuple(t.shape), t.dtype) for name, t in state.items())
        return self.known.setdefault(found, found)


class Asleep(NamedTuple):
    """What a client keeps while its network is given up: all its numbers in one array."""

    numbers: bytes = b""
    layout: tuple[Any, ...] = ()

    @classmethod
    def of(cls, state: Mapping[str, Tensor], layout: Layout) -> "Asleep":
        return cls(b"".join([on_host(t).data for t in state.values()]), layout.of(state))

    def state(self, device: torch.device) -> State:
        found, place = {}, 0
        for name, shape, dtype in self.layout:
            count = prod(shape)
            # Copies: what lies here stays as it is, and tensors of their own are aligned as kernels want them.
            found[name] = torch.empty(shape, dtype=dtype)
            on_host(found[name])[:] = values(self.numbers, dtype, count, place)
            place += count * dtype.itemsize
        return found if device.type == "cpu" else {name: t.to(device) for name, t in found.items()}
