"""DCT: the low-pass of SEAL in the public cosine basis, which sends only the coefficients it keeps."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from .base import Bound, Guard, Support
from .parts.claims import Claim
from .parts.periodic import Transform, check_energy, dct_basis, kept_by_energy, prefix, sides, stays_similar


@dataclass(frozen=True, repr=False)
class DCT(Guard):
    """The first cosine coefficients of each map, up to `energy`, in zig-zag order: SEAL without a key, and smaller.

    What leaves are the kept coefficients, zeros behind them, so a codec can drop the rest. The server inverts the
    public transform; a gradient goes back for kept coefficients alone.
    """

    capturable: ClassVar[bool] = True
    energy: float = 0.7
    makes_zeros: ClassVar[bool] = True
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"energy": Between(0.1, 0.95)}

    def __post_init__(self) -> None:
        check_energy(self, self.energy)

    def out_shape(self, shape: Shape) -> Shape:
        height, width = sides(shape)
        return (*shape[:-2], height * width)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Coefficients(_transform(shape), self.energy)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return nn.Sequential(Support(), Inverse(_transform(shape)))

    def undo(self, shape: Shape, public: int) -> nn.Module:
        return Inverse(_transform(shape))

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        return (stays_similar(self.energy, "once the server has inverted it", Inverse(_transform(shape))),)

    def bound(self, before: Bound) -> Bound:
        return before if before.release else kept_by_energy(self, before)


def _transform(shape: Shape) -> Transform:
    height, width = sides(shape)
    return Transform(shape, dct_basis(height), dct_basis(width))


class _Coefficients(GuardModule):
    def __init__(self, transform: Transform, energy: float):
        super().__init__()
        self.transform, self.energy = transform, energy

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        Z = self.transform.zigzag(self.transform.down(z))
        counts = prefix(Z, self.energy)
        if self.training:
            self.notes = {"kept": counts.sum().double() / Z.numel()}
        kept = torch.arange(Z.shape[2], device=Z.device) < counts.unsqueeze(-1)
        # Chosen, not multiplied: a codec that drops zeros must not meet a -0.
        return Guarded(torch.where(kept, Z, 0.0).reshape(len(z), *self.transform.shape[:-2], Z.shape[2]))


class Inverse(nn.Module):
    """From coefficients in zig-zag order back to the cut."""

    def __init__(self, transform: Transform):
        super().__init__()
        self.transform = transform

    def forward(self, seen: Tensor) -> Tensor:
        Z = seen.reshape(len(seen), self.transform.maps, self.transform.place.numel())
        return self.transform.up(self.transform.unzigzag(Z))
