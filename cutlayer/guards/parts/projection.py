"""Orthonormal projections R (d x k, RᵀR = I) that follow from a seed: the seed travels, the matrix never does."""

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import torch
from torch import Tensor, nn

from ...core.seeds import generator
from ...core.spec import Spec

__all__ = ["Dense", "Fast"]


class Projection(nn.Module):
    """`down(z) = Rᵀz` and `up(s) = Rs`, on rows."""

    def down(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def up(self, s: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Dense(Spec):
    """Q of a Gaussian matrix, as in LightSplit's text. `uniform` draws U(0,1), as its Alg. 1 prints.

    The two differ: with U(0,1) the all-ones direction lies almost inside the range, and activations after a ReLU
    are mostly that direction.
    """

    uniform: bool = False

    def build(self, width: int, kept: int, seed: int) -> Projection:
        return _DenseProjection(_orthonormal(width, kept, seed, self.uniform).to(torch.get_default_dtype()))


@dataclass(frozen=True, repr=False)
class Fast(Spec):
    """Random signs, then two small orthonormal factors: R = diag(signs)(A ⊗ B), cut to k columns.

    Rows are selected before multiplying (each factor is already narrow), so a batch costs two small products
    instead of one of d x k, and takes d·kb numbers of memory instead of d·k.
    """

    def build(self, width: int, kept: int, seed: int) -> Projection:
        return _FastProjection(width, kept, seed)


class _DenseProjection(Projection):
    R: Tensor

    def __init__(self, R: Tensor):
        super().__init__()
        self.register_buffer("R", R, persistent=False)

    def down(self, z: Tensor) -> Tensor:
        return z @ self.R

    def up(self, s: Tensor) -> Tensor:
        return s @ self.R.T


class _FastProjection(Projection):
    A: Tensor
    signed: Tensor

    def __init__(self, width: int, kept: int, seed: int):
        super().__init__()
        self.kept = kept
        (self.a, self.b), (self.ka, self.kb) = factors(width, kept)
        signs = torch.randint(0, 2, (self.a, self.b, 1), generator=generator(seed)) * 2 - 1
        dtype = torch.get_default_dtype()
        self.register_buffer("A", _orthonormal(self.a, self.ka, seed + 1).to(dtype), persistent=False)
        # B once per row of the grid, with that row's signs in it: a pass over z less.
        signed = signs * _orthonormal(self.b, self.kb, seed + 2)
        self.register_buffer("signed", signed.to(dtype), persistent=False)

    def down(self, z: Tensor) -> Tensor:
        rows = z.reshape(-1, self.a, self.b).transpose(0, 1) @ self.signed  # a, batch, kb
        grid = self.A.T @ rows.reshape(self.a, -1)
        return grid.reshape(self.ka, -1, self.kb).transpose(0, 1).reshape(len(z), -1)[:, : self.kept]

    def up(self, s: Tensor) -> Tensor:
        unused = self.ka * self.kb - self.kept
        grid = (nn.functional.pad(s, (0, unused)) if unused else s).reshape(-1, self.ka, self.kb)
        rows = self.A @ grid.transpose(0, 1).reshape(self.ka, -1)
        whole = rows.reshape(self.a, -1, self.kb) @ self.signed.transpose(1, 2)  # a, batch, b
        return whole.transpose(0, 1).reshape(len(s), -1)


def factors(width: int, kept: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(a, b) with ab = width, as square as it goes, and (ka, kb) with ka kb >= kept, least waste first."""
    a = next(n for n in range(isqrt(width), 0, -1) if width % n == 0)
    b = width // a
    grids = [(ka, -(-kept // ka)) for ka in range(1, a + 1) if -(-kept // ka) <= b]

    def preference(grid: tuple[int, int]) -> tuple[bool, bool, float, int]:
        ka, kb = grid
        # Little waste; then rows of whole SIMD registers (2x faster at 4096 -> 512); then both factors narrowed
        # alike, which mixes best.
        return ka * kb > 1.05 * kept, kb % 16 != 0, abs(ka * b - kb * a), kb

    return (a, b), min(grids, key=preference)


@lru_cache(maxsize=8)
def _orthonormal(width: int, kept: int, seed: int, uniform: bool = False) -> Tensor:
    """Thin Q of a random matrix, drawn in float64 on the CPU; signs fixed so that every machine agrees."""
    draw = torch.rand if uniform else torch.randn
    Q, T = torch.linalg.qr(draw(width, kept, generator=generator(seed), dtype=torch.float64))
    return Q * torch.sign(torch.diagonal(T))
