"""Random coordinates: the baseline every projection must beat."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import generator
from .base import Bound, Guard, kept_width, refuse_no_ratio
from .parts.claims import Claim, rank


@dataclass(frozen=True, repr=False)
class Subset(Guard):
    """A fixed random subset of the coordinates, 1/ratio of them (baseline: same rank, no arithmetic)."""

    capturable: ClassVar[bool] = True
    ratio: float
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(2.0, 128.0, log=True)}

    def __post_init__(self) -> None:
        refuse_no_ratio(self, self.ratio)

    @classmethod
    def usual(cls) -> "Subset":
        return cls(ratio=8)

    def out_shape(self, shape: Shape) -> Shape:
        return (kept_width(self, self.ratio, prod(shape)),)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Select(self._chosen(shape, public))

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return PutBack(self._chosen(shape, public), shape)

    def undo(self, shape: Shape, public: int) -> nn.Module:
        return self.lift(shape, public)

    def _chosen(self, shape: Shape, public: int) -> Tensor:
        order = torch.randperm(prod(shape), generator=generator(public))
        return order[: self.out_shape(shape)[0]].sort().values

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        return (rank(self.out_shape(shape)[0], prod(shape)),)

    def bound(self, before: Bound) -> Bound:
        # Orthonormal columns stretch nothing in L2; in L1 they may.
        return before if before.p == 2 or before.release else super().bound(before)


class _Select(GuardModule):
    chosen: Tensor

    def __init__(self, chosen: Tensor):
        super().__init__()
        self.register_buffer("chosen", chosen, persistent=False)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        return Guarded(z.flatten(1)[:, self.chosen])


class PutBack(nn.Module):
    """The chosen coordinates at their places, zeros elsewhere."""

    chosen: Tensor

    def __init__(self, chosen: Tensor, shape: Shape):
        super().__init__()
        self.shape = shape
        self.register_buffer("chosen", chosen, persistent=False)

    def forward(self, seen: Tensor) -> Tensor:
        whole = seen.new_zeros(len(seen), prod(self.shape))
        return whole.index_copy(1, self.chosen, seen).reshape(len(seen), *self.shape)
