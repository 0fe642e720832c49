"""Fewer bits a number."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Task
from ..core.compressor import Compressor
from ..core.guard import GuardModule, Shape
from ..wire.codecs.entropy import MOST_BITS as MOST_CODED
from ..wire.codecs.entropy import Coded
from ..wire.codecs.parts.gridded import MOST_BITS, Gridded
from .base import Guard
from .parts.straight_through import StraightThrough

ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True, repr=False)
class Quantize(Guard, Compressor):
    """Each row on a grid of 2^bits levels between its smallest and its largest value.

    Straight through: gradients pass as if nothing had happened. Also for `down` (u) and `back` (du and dz) of a plan,
    where `rounding="stochastic"` makes the rounded gradient right on average.
    """

    bits: int = 8
    rounding: str = "nearest"
    entropy: bool = False  # frequent levels take fewer bits; both sides need the extra `entropy`

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"Quantize's bits is a whole number from 1 to {MOST_BITS}; got {self.bits!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"Quantize's rounding is one of {', '.join(ROUNDINGS)}; got {self.rounding!r}")
        if self.entropy and self.bits > MOST_CODED:
            raise ValueError(f"Quantize codes up to {MOST_CODED} bits by entropy; got {self.bits}")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return StraightThrough(self, private)

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        rows = tensor.detach().reshape(len(tensor), -1) if tensor.dim() else tensor.detach().reshape(1, 1)
        if rows.shape[1] < 2:
            return tensor, None
        begin, end = rows.amin(1), rows.amax(1)  # NaN and infinity show in them
        step = (end - begin) / (2**self.bits - 1)
        if not (torch.isfinite(begin) & torch.isfinite(step)).all():
            return tensor, None
        step = torch.where(step > 0, step, torch.ones_like(step))
        place = (rows - begin[:, None]).div_(step[:, None])
        if self.rounding == "stochastic":
            place = place.add_(torch.rand(place.shape, generator=draw).to(place)).floor_()
        codes = place.round_().clamp_(0, 2**self.bits - 1).to(torch.int32)
        grid = Gridded(codes, begin, step, self.bits)
        value = grid.value().reshape(tensor.shape)
        if not self.entropy:
            return value, grid
        coded = Coded(grid)
        return value, coded if coded.size() < grid.size() else grid
