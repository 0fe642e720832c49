"""Clipping: no row that leaves is longer than a given norm, so replacing one sample moves it by a known distance."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.errors import NonFinite
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from .base import Bound, Guard
from .parts.claims import Claim, Sent

ROUNDING = 1 + 1e-5  # of a float32: what a guard behind the clip may add to a length that it does not stretch


@dataclass(frozen=True, repr=False)
class Clip(Guard):
    """Rows longer than `norm` are scaled down to it, in L2 (p=2) or L1 (p=1): what noise is calibrated to."""

    norm: float = 1.0
    p: int = 2
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"norm": Between(0.1, 10.0, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.norm, int | float) or not 0 < self.norm < float("inf"):
            raise ValueError(f"Clip's norm is the longest a row may be, a number above 0; got {self.norm!r}")
        if self.p not in (1, 2):
            raise ValueError(f"Clip measures rows with p=2 (Gaussian noise) or p=1 (Laplace noise); got {self.p!r}")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Shorten(self)

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        text = f"no row that leaves is longer than {self.norm:g} in L{self.p}"
        return (Claim(text, self._is_short, lambda later, shape: self._stays_short(later)),)

    def _is_short(self, sent: Sent) -> bool:
        rows = sent.seen.detach().flatten(1).double()
        return bool((torch.linalg.vector_norm(rows, self.p, dim=1) <= self.norm * ROUNDING).all())

    def _stays_short(self, later: Guard) -> bool:
        after = later.bound(Bound(self.norm, 2 * self.norm, self.p))
        return after.norm is not None and after.norm <= self.norm and after.p == self.p

    def bound(self, before: Bound) -> Bound:
        if before.release is not None:
            return before
        # Radial clipping is the projection onto the L2 ball: it moves no two rows further apart (not so in L1).
        kept = before.moves if self.p == before.p == 2 else None
        if not before.apart:
            why = "the rows mix samples before they are bounded: put Clip(norm=...) before the guard that mixes them"
            return Bound(self.norm, kept, self.p, why)
        # Two rows of length C are at most 2C apart.
        moves = 2 * self.norm if kept is None else min(kept, 2 * self.norm)
        return Bound(self.norm, moves, self.p)


class _Shorten(GuardModule):
    def __init__(self, spec: Clip):
        super().__init__()
        self.spec = spec

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        rows = z.flatten(1)
        if not torch.isfinite(rows.detach()).all():
            # There is no honest length to cut these to, and to replace them would hide that training is lost.
            raise NonFinite(
                f"what reaches {self.spec} is no finite number, so no bound holds: lower the learning rate"
            )
        short, cut = clipped(rows, self.spec.norm, self.spec.p)
        if self.training:
            self.notes = {"clipped": cut.double().mean()}
        return Guarded(short.reshape(z.shape))


def clipped(rows: Tensor, norm: float, p: int) -> tuple[Tensor, Tensor]:
    """(rows of p-norm at most `norm`, which of them were longer). Shorter rows come back bit for bit.

    The bound is on the numbers as they are sent: the target is a little below `norm`, by more than rounding adds.
    """
    # Of each product, and of a sum over the row (Higham 2002, Eq. 4.4).
    rounding = 32 * torch.finfo(rows.dtype).eps + rows.shape[1] * torch.finfo(torch.float64).eps
    target = norm * (1 - rounding)
    # In float64 and relative to the largest entry: no square overflows, whatever a network made of its input.
    peak = rows.detach().abs().double().amax(1, keepdim=True).clamp_min(target)
    unit = rows.double() / peak
    length = torch.linalg.vector_norm(unit, ord=p, dim=1, keepdim=True)
    long = length > target / peak
    # A row that is too long has a length of at least 1 in this unit; the others must not divide by 0.
    shortened = unit * (target / length.clamp_min(1.0))
    return torch.where(long, shortened.to(rows.dtype), rows), long.squeeze(1)
