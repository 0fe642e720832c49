"""LightSplit: an orthonormal random projection at the cut, lifted back by its transpose or by a learned MLP."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import seeded
from .base import Bound, Guard, kept_width, refuse_no_ratio
from .parts.claims import Claim, rank
from .parts.projection import Dense, Fast, Projection


@dataclass(frozen=True, repr=False)
class LightSplit(Guard):
    """Random projection to 1/ratio of the width; the server lifts it back by R, or by a learned MLP (hidden > 0).

    LightSplit, Sec. IV: z̃ = Rᵀz with RᵀR = I, k = floor(d / ratio). The server learns Pz = RRᵀz exactly: this is
    rank reduction, and R is public. `hidden` is the width m of LightSplit-L's lift (Eq. 7), 0 is LightSplit-F.
    """

    capturable: ClassVar[bool] = True
    ratio: float
    hidden: int = 0
    projection: Dense | Fast = Fast()
    fills_zeros: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(2.0, 128.0, log=True)}

    def __post_init__(self) -> None:
        refuse_no_ratio(self, self.ratio)
        if not isinstance(self.hidden, int) or self.hidden < 0:
            raise ValueError(f"{self}: hidden is the width of the learned lift, 0 for the fixed one")
        if not isinstance(self.projection, Dense | Fast):
            raise ValueError(f"{self}: projection is Fast() or Dense()")

    @classmethod
    def usual(cls) -> "LightSplit":
        return cls(ratio=8)

    def out_shape(self, shape: Shape) -> Shape:
        return (kept_width(self, self.ratio, prod(shape)),)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Project(self._projection(shape, public))

    def lift(self, shape: Shape, public: int) -> nn.Module:
        if not self.hidden:
            return LiftBack(self._projection(shape, public), shape)
        (kept,), width = self.out_shape(shape), prod(shape)
        with seeded(public):
            # Eq. 7 prints no biases; Table II's counts have them.
            return nn.Sequential(
                nn.Linear(kept, self.hidden),
                nn.BatchNorm1d(self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, width),
                nn.Unflatten(1, shape),
            )

    def undo(self, shape: Shape, public: int) -> nn.Module:
        return LiftBack(self._projection(shape, public), shape)

    def _projection(self, shape: Shape, public: int) -> Projection:
        return self.projection.build(prod(shape), self.out_shape(shape)[0], public)

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        return (rank(self.out_shape(shape)[0], prod(shape)),)

    def bound(self, before: Bound) -> Bound:
        # Orthonormal columns stretch nothing in L2; in L1 they may.
        return before if before.p == 2 or before.release else super().bound(before)


class _Project(GuardModule):
    def __init__(self, projection: Projection):
        super().__init__()
        self.projection = projection

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        return Guarded(self.projection.down(z.flatten(1)))


class LiftBack(nn.Module):
    """ẑ = Rz̃, back in the shape of the cut (LightSplit-F)."""

    def __init__(self, projection: Projection, shape: Shape):
        super().__init__()
        self.projection, self.shape = projection, shape

    def forward(self, seen: Tensor) -> Tensor:
        return self.projection.up(seen).reshape(len(seen), *self.shape)
