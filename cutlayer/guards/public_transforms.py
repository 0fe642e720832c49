"""Public orthonormal transforms: the low-pass of SEAL in a basis anybody knows, which sends only what it keeps."""

from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt
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
class _PublicTransform(Guard):
    """The first coefficients of each map, up to `energy`, in zig-zag order: SEAL without a key, and smaller.

    What leaves are the kept coefficients, zeros behind them, so a codec can drop the rest. The server inverts the
    public transform; a gradient goes back for kept coefficients alone. A transform says which basis it is (`basis`),
    its vectors as rows, the coarsest first.
    """

    capturable: ClassVar[bool] = True
    energy: float = 0.7
    makes_zeros: ClassVar[bool] = True
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"energy": Between(0.1, 0.95)}

    def __post_init__(self) -> None:
        check_energy(self, self.energy)

    def basis(self, size: int) -> Tensor:
        """An orthonormal basis of vectors of this size, in float64."""
        raise NotImplementedError

    def out_shape(self, shape: Shape) -> Shape:
        height, width = sides(shape)
        return (*shape[:-2], height * width)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Coefficients(self._transform(shape), self.energy)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return nn.Sequential(Support(), Inverse(self._transform(shape)))

    def undo(self, shape: Shape, public: int) -> nn.Module:
        return Inverse(self._transform(shape))

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        return (stays_similar(self.energy, "once the server has inverted it", Inverse(self._transform(shape))),)

    def bound(self, before: Bound) -> Bound:
        return before if before.release else kept_by_energy(self, before)

    def _transform(self, shape: Shape) -> Transform:
        height, width = sides(shape)
        return Transform(shape, self.basis(height), self.basis(width))


@dataclass(frozen=True, repr=False)
class DCT(_PublicTransform):
    """The first cosine coefficients of each map, up to `energy`, in zig-zag order: SEAL without a key, and smaller.

    The basis is the DCT-II.
    """

    def basis(self, size: int) -> Tensor:
        return dct_basis(size)


@dataclass(frozen=True, repr=False)
class DST(_PublicTransform):
    """DCT with sines (DST-II): no vector of it is constant, so bright maps need more coefficients."""

    in_suite: ClassVar[bool] = False  # the suite has DCT for all that anybody can invert

    def basis(self, size: int) -> Tensor:
        return dst_basis(size)


@dataclass(frozen=True, repr=False)
class Haar(_PublicTransform):
    """DCT with Haar's wavelets: means of halves against each other, coarse to fine. Sharp edges stay short."""

    in_suite: ClassVar[bool] = False

    def basis(self, size: int) -> Tensor:
        return haar_basis(size)


@dataclass(frozen=True, repr=False)
class PCA(_PublicTransform):
    """DCT with the principal axes of a signal whose neighbours correlate by `rho`.

    A basis that is public may not follow from the data: axes of a client's own activations would tell of them, and
    would have to be sent. This is the textbook's model of natural signals; as rho nears 1 it becomes DCT.
    """

    rho: float = 0.9
    in_suite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rho, int | float) or not 0 < self.rho < 1:
            raise ValueError(f"PCA's rho is how far neighbours correlate, above 0 and below 1; got {self.rho!r}")

    def basis(self, size: int) -> Tensor:
        return pca_basis(size, float(self.rho))


def dst_basis(size: int) -> Tensor:
    """The orthonormal DST-II."""
    index = torch.arange(size, dtype=torch.float64)
    S = torch.sin(pi * (index + 1).outer(2 * index + 1) / (2 * size)) * sqrt(2 / size)
    S[-1] /= sqrt(2)
    return S


def haar_basis(size: int) -> Tensor:
    """Haar's wavelets on any length: of each piece, its first half against its second, both weighed to sum to 0."""
    rows, pieces = [torch.ones(size, dtype=torch.float64) / sqrt(size)], [(0, size)]
    while pieces:
        finer = []
        for first, last in pieces:
            if last - first < 2:
                continue
            middle = (first + last + 1) // 2
            row = torch.zeros(size, dtype=torch.float64)
            row[first:middle], row[middle:last] = 1 / (middle - first), -1 / (last - middle)
            rows.append(row / row.norm())
            finer += [(first, middle), (middle, last)]
        pieces = finer
    return torch.stack(rows)


@lru_cache(maxsize=16)
def pca_basis(size: int, rho: float) -> Tensor:
    """Eigenvectors of correlations rho^|i-j|, largest first, each turned so that its largest number is positive."""
    index = torch.arange(size, dtype=torch.float64)
    vectors = torch.linalg.eigh(rho ** (index[:, None] - index).abs()).eigenvectors.T.flip(0)
    largest = vectors.gather(1, (vectors.abs() - 1e-6 * index).argmax(1, keepdim=True))
    return (vectors * largest.sign()).contiguous()


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
