"""Fewer bits a number."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Task
from ..core.compressor import Compressor
from ..core.guard import GuardModule, Shape
from ..core.lost_numbers import finite
from ..core.search import Between, Search
from ..wire.codecs.entropy import MOST_BITS as MOST_CODED
from ..wire.codecs.entropy import Coded
from ..wire.codecs.parts.gridded import MOST_BITS, Gridded, grid_type, on_grid
from ..wire.codecs.parts.smallest import Smallest
from ..wire.codecs.sparse_grid import SparseGridded
from .base import Guard
from .parts.straight_through import StraightThrough

ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True, repr=False)
class Quantize(Guard, Compressor):
    """Each row on a grid of 2^bits levels between its smallest and its largest value.

    Zeros stay zeros, so behind a guard that drops coordinates the wire leaves them out as before.
    Straight through: gradients pass as if nothing had happened. Also for `down` (u) and `back` (du and dz) of a plan,
    where `rounding="stochastic"` makes the rounded gradient right on average.
    """

    capturable: ClassVar[bool] = True
    bits: int = 8
    rounding: str = "nearest"
    entropy: bool = False  # frequent levels take fewer bits; both sides need the extra `entropy`
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    search: ClassVar[Search] = {"bits": Between(1, 8)}

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"Quantize's bits is a whole number from 1 to {MOST_BITS}; got {self.bits!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"Quantize's rounding is one of {', '.join(ROUNDINGS)}; got {self.rounding!r}")
        if self.entropy and self.bits > MOST_CODED:
            raise ValueError(f"Quantize codes up to {MOST_CODED} bits by entropy; got {self.bits}")

    @property
    def draws_anew(self) -> bool:
        return self.rounding == "stochastic"

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return StraightThrough(self, private)

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        rows = tensor.detach().to(grid_type(tensor.dtype))
        rows = rows.flatten(1) if rows.dim() > 1 else rows.reshape(-1, 1)
        if rows.shape[1] < 2:
            return tensor, None
        steps, begin, end = 2**self.bits - 1, rows.amin(1), rows.amax(1)  # NaN and infinity show in them
        is_zero, zero, step = _zeros_to_keep(rows, begin), None, (end - begin) / steps
        if is_zero is not None:
            begin, step, zero = _grids(begin, end, step, _any(is_zero), steps)
        elif not step.numel() or not float(step.amin()) > 0:
            step = torch.where(step > 0, step, 1.0)
        # A device is not waited for: numbers that are lost there spoil the loss, and that is looked at.
        if rows.is_cpu and len(rows) and not _far_from_ends(begin, end, tensor.dtype):
            last = torch.where(begin == end, end, steps * step + begin)  # may lie up to a step beyond what is there
            if not finite(last.to(tensor.dtype)):
                return tensor, None
        place = (rows - begin[:, None]).div_(step[:, None])
        if self.rounding == "stochastic":
            place.add_(torch.rand(place.shape, generator=draw).to(place)).floor_()
        else:
            place.round_()
        if is_zero is not None and zero is not None:  # elsewhere zeros are the beginning, and their code is 0 already
            place = torch.where(is_zero, zero[:, None], place).add_(0.0)  # and no code is -0.0
        grid = Gridded(place.clamp_(0, steps).to(torch.int32), begin, step, self.bits)
        value = on_grid(place, begin, step)
        ways: list[Any] = [grid, SparseGridded(grid, value)]
        if self.entropy:
            ways.append(Coded(grid))
        return value.to(tensor.dtype).reshape(tensor.shape), Smallest(tuple(ways))


def _far_from_ends(begin: Tensor, end: Tensor, dtype: torch.dtype) -> bool:
    """Whether all are numbers, and any grid between them holds numbers alone, as nearly always."""
    limit = torch.finfo(dtype).max / 4
    return -limit < float(begin.amin()) and float(end.amax()) < limit  # NaN is neither


def _zeros_to_keep(rows: Tensor, begin: Tensor) -> Tensor | None:
    """Which numbers are zero. None where nobody needs to know: no row begins below zero, or none has a zero.

    A device is not waited for. On the CPU numpy is some five times faster.
    """
    if not rows.is_cpu:
        return rows == 0
    if not begin.numel() or float(begin.amin()) >= 0:
        return None
    is_zero = rows.numpy() == 0
    return torch.from_numpy(is_zero) if np.count_nonzero(is_zero) else None


def _any(flags: Tensor) -> Tensor:
    """Which rows have one. On the CPU numpy is some twenty times faster."""
    return torch.from_numpy(flags.numpy().any(1)) if flags.is_cpu else flags.any(1)


def _grids(
    begin: Tensor, end: Tensor, step: Tensor, has_zeros: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where each row's grid begins, how wide its steps are, and the code of 0 in rows with zeros (None: it is 0).
    `step`: so wide that they reach from end to end.

    What is exactly zero stays so, since the wire leaves it out: a row with zeros and negative values gets a grid with
    a level at 0. It reaches both ends, and its steps are wider for it. With a single step only the longer side is
    reached.
    """
    moved = has_zeros & (begin < 0)
    if moved.is_cpu and not bool(moved.any()):
        return begin, torch.where(step > 0, step, 1.0), None
    below = (-begin / torch.where(step > 0, step, 1.0)).round()  # levels under 0
    if steps > 1:  # each side that has values has a level
        below = torch.where(end > 0, below.clamp(1, steps - 1), below)
    needed = torch.maximum(-begin / below.clamp(min=1), end / (steps - below).clamp(min=1))
    step = torch.where(moved, needed, step)
    step = torch.where(step > 0, step, 1.0)
    # The product is rounded as `Gridded` rounds it, so that code · step + begin is exactly 0 there.
    zero = torch.where(moved, below, 0.0)
    return torch.where(moved, -(zero * step), begin), step, zero
