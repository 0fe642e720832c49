"""FedMuon (thesis ch. 5): the server's momentum, matrix by matrix, with all its singular values brought near one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod, sqrt

import torch
from torch import Tensor

from .base import NET, check_number
from .parts.merging import Merging, State, like, momentum, remembered, to_remember

QUINTIC = (3.4445, -4.7750, 2.0315)  # K. Jordan et al. 2024: steep at zero, at the price of a band around one
SCALES = ("none", "kj", "rms")
RESTS = ("momentum", "adam")
BETA2, TAU = 0.99, 1e-3  # of Adam, for what is no matrix: FedAdam's
POLISH = 8  # cubic steps that take singular values from the quintic's band to one


@dataclass(frozen=True, repr=False)
class FedMuon(Merging):
    """Momentum made near-orthogonal, for matrices and kernels: v = β v + g, x − η NS(v); the rest steps along v.

    `steps` of Newton–Schulz leave singular values between about 0.7 and 1.2, less for directions a thousand times
    weaker than the strongest. `polish` goes on to 1. `scale` multiplies a rows × cols step: 'none' as in the thesis,
    'kj' by √max(1, rows/cols), of a kernel its height and width, as its author's code has it; 'rms' by
    0.2 √max(rows, cols), which makes entries as large as Adam's. `exclude` names parts of parameter names that step
    along v as well, e.g. ("tail.",) for the classifier; embeddings (nn.Embedding, Positions) always do.
    rest="adam" steps these, and what is no matrix, as Muon's author does: along Adam's direction, at `rest_lr`.
    """

    lr: float = 0.05
    momentum: float = 0.9
    scale: str = "none"
    polish: bool = False
    steps: int = 5
    exclude: tuple[str, ...] = ()
    rest: str = "momentum"
    rest_lr: float = 0.003  # of Adam's steps, whose entries are near 1

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf)
        check_number(self, "momentum", 0, 1, closed=True)
        if self.scale not in SCALES:
            raise ValueError(f"FedMuon: scale is one of {', '.join(SCALES)}; got {self.scale!r}")
        if not isinstance(self.steps, int) or not 1 <= self.steps <= 50:
            raise ValueError(f"FedMuon: steps is a whole number from 1 to 50, usually 5; got {self.steps!r}")
        if isinstance(self.exclude, str) or not all(isinstance(part, str) and part for part in self.exclude):
            raise ValueError(f'FedMuon: exclude is a list of names, e.g. ("tail.",); got {self.exclude!r}')
        if self.rest not in RESTS:
            raise ValueError(f"FedMuon: rest is one of {', '.join(RESTS)}; got {self.rest!r}")
        check_number(self, "rest_lr", 0, inf)

    def fitted(self, tables: Callable[[], Sequence[str]]) -> "FedMuon":
        # A row of a table is one word's: there is no map between rows and columns to make orthogonal.
        return replace(self, exclude=(*self.exclude, *tables()))

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        matrix = now.ndim >= 2 and not any(part in name for part in self.exclude)
        if not matrix and self.rest == "adam":
            return self._adam(name, now, g, current)
        v, kept = momentum(self.momentum, name, now, g, current)
        if matrix:
            # The direction needs no double precision; large kernels are several times faster without.
            flat = v.to(torch.promote_types(now.dtype, torch.float32)).flatten(1)
            near = orthogonalize(flat, self.steps, polish=self.polish) * self._factor(now.shape)
            v = near.reshape(now.shape).double()
        return {NET + name: like(now, now.double() - self.lr * v), **kept}

    def _adam(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        """Moments as FedAdam keeps them (Reddi et al. 2021, Alg. 2), under the names it keeps them by."""
        m = torch.lerp(g, remembered("first", name, g, current), self.momentum)
        v = torch.lerp(g.square(), remembered("second", name, g, current, TAU**2), BETA2)
        kept = to_remember("first", name, m, now) | to_remember("second", name, v, now)
        return {NET + name: like(now, now.double() - self.rest_lr * m / (v.sqrt() + TAU)), **kept}

    def _factor(self, shape: Sequence[int]) -> float:
        if self.scale == "kj":
            # Of a kernel its author's code takes the last two sides, height and width: a square one is not scaled.
            rows, columns = shape[-2:]
            return sqrt(max(1, rows / max(1, columns)))
        return 0.2 * sqrt(max(shape[0], prod(shape[1:]))) if self.scale == "rms" else 1.0


def orthogonalize(matrix: Tensor, steps: int = 5, *, polish: bool = False) -> Tensor:
    """A matrix with the same singular vectors, and singular values near one; zero stays zero (thesis Eq. 5.5).

    With A = X Xᵀ of the shorter side, X = aX + (bA + cA²)X maps every singular value σ to aσ + bσ³ + cσ⁵.
    """
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)  # the Frobenius norm bounds the largest singular value
    a, b, c = QUINTIC
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    for _ in range(POLISH if polish else 0):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
