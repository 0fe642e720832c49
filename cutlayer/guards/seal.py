"""SEAL: a low-pass filter at the cut, in a basis that only the client knows."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator
from .base import Bound, Guard
from .parts.claims import Claim
from .parts.periodic import (
    GRAMS,
    WAVES,
    Transform,
    Unfit,
    check_energy,
    kept_by_energy,
    prefix,
    public_basis,
    secret_bases,
    sides,
    stays_similar,
)


@dataclass(frozen=True, repr=False)
class SEAL(Guard):
    """A low-pass at the cut: each map keeps the first coefficients of a secret periodic transform, up to `energy`.

    SEAL, Alg. 2: Z = Q₁XQ₂ᵀ, the shortest zig-zag prefix with that share of the energy stays, and X̃ = Q₁ᵀZQ₂ leaves
    in the shape of the cut. `wave="secret"` draws each client's own function from its private seed; the named ones
    are public, for experiments ("cosine" is the DCT). `fixed` is Alg. 5: the prefix is found once, on noise. It does
    not see how the energy of real maps is spread, keeps about `energy` of all coefficients, and bounds nothing.
    A map is made of the last two dimensions, of a text tokens x features; `dims=1` takes every row by itself, of a
    text each token's features.
    """

    capturable: ClassVar[bool] = True
    energy: float = 0.7
    gram: str = "column"
    wave: str = "secret"
    fixed: bool = False
    dims: int = 2
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"energy": Between(0.1, 0.95)}

    def __post_init__(self) -> None:
        check_energy(self, self.energy)
        if self.gram not in GRAMS:
            raise ValueError(
                f"SEAL: gram is {' or '.join(map(repr, GRAMS))}, what is orthogonalised; got {self.gram!r}"
            )
        if self.wave != "secret" and self.wave not in WAVES:
            raise ValueError(f"SEAL: wave is 'secret' or one of {', '.join(map(repr, WAVES))}; got {self.wave!r}")
        if self.dims not in (1, 2):
            raise ValueError(f"SEAL: dims is 2 (maps) or 1 (rows, each by itself); got {self.dims!r}")

    @property
    def has_key(self) -> bool:
        return self.wave == "secret"

    def maps(self, shape: Shape) -> Shape:
        """A cut as the maps that are transformed."""
        return shape if self.dims == 2 else (*shape[:-1], 1, shape[-1])

    def out_shape(self, shape: Shape) -> Shape:
        if self.wave != "secret":
            self._public_bases(shape)
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        maps = self.maps(shape)
        if self.wave == "secret":
            left, right = secret_bases(sides(maps), self.gram, private)
        else:
            left, right = self._public_bases(shape)
        transform = Transform(maps, left, right)
        if not self.fixed:
            return LowPass(transform, self.energy)
        # Alg. 5 transforms white noise; what an orthonormal transform makes of it is white noise.
        draw = generator(derive(private, "noise"))
        noise = torch.randn(prod(sides(maps)), generator=draw, dtype=torch.float64)
        return LowPass(transform, self.energy, count=int(prefix(noise, self.energy)))

    def _public_bases(self, shape: Shape) -> tuple[Tensor, Tensor]:
        try:
            left, right = (public_basis(self.wave, side, self.gram) for side in sides(self.maps(shape)))
        except Unfit as unfit:
            raise ValueError(
                f"{self} cannot work at a cut of {shape}: {unfit}. Take wave='secret', 'cosine' or 'triangle'"
            ) from unfit
        return left, right

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        return () if self.fixed else (stays_similar(self.energy, "whatever the key", lambda seen: seen),)

    def bound(self, before: Bound) -> Bound:
        if before.release:
            return before
        if self.fixed and before.p == 2:
            return before  # a fixed orthogonal projection stretches nothing in L2
        return kept_by_energy(self, before)


class LowPass(GuardModule):
    def __init__(self, transform: Transform, energy: float, count: int | None = None):
        super().__init__()
        self.transform, self.energy, self.count = transform, energy, count

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        Z = self.transform.down(z)
        if self.count is None:
            counts = prefix(self.transform.zigzag(Z.detach()), self.energy)
        else:
            counts = torch.full(Z.shape[:2], self.count, device=Z.device)
        if self.training:
            self.notes = {"kept": counts.sum().double() / Z.numel()}
        kept = torch.where(self.transform.place < counts.unsqueeze(-1), Z, 0.0)
        return Guarded(self.transform.up(kept).reshape(z.shape))
