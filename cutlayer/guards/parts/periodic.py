"""Discrete periodic transforms: orthonormal bases from one period of a wave, and the prefix that holds its energy."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import pi, prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...core.seeds import derive, generator
from ..base import Bound, Guard
from .claims import Claim, Sent

Wave = Callable[[Tensor], Tensor]  # of the phase in [0, 1): the period and the amplitude cancel, only the form counts

WORST_CONDITION = 1e4
ROUNDING = 1e-4  # of a cosine in float32
HARMONICS = 8
DRAWS = 100
GRAMS = ("column", "row")


class Unfit(ValueError):
    """A wave whose samples are no basis."""


def _to_peak(phase: Tensor) -> Tensor:
    """The distance to the nearest whole number: all even waves are functions of it."""
    return torch.minimum(phase, 1 - phase)


def _cos(phase: Tensor, harmonic: int = 1) -> Tensor:
    return torch.cos(2 * pi * harmonic * phase)


# Waves that anybody can write down. The last two look harmless and are not: see `basis`.
WAVES: dict[str, Wave] = {
    "cosine": _cos,  # exactly the DCT-II
    "triangle": lambda phase: 1 - 4 * _to_peak(phase),
    "square": lambda phase: torch.sign(0.25 - _to_peak(phase)),
    "harmonics": lambda phase: _cos(phase) + 0.3 * _cos(phase, 2) + 0.2 * _cos(phase, 3),
    "cubed": lambda phase: _cos(phase) ** 3,
    "exponential": lambda phase: torch.exp(_cos(phase)) - torch.special.i0(torch.ones_like(phase)),
    "shifted": lambda phase: torch.cos(2 * pi * phase + 0.3),
    "sawtooth": lambda phase: 2 * phase - 1,
    "sine": lambda phase: torch.sin(2 * pi * phase),
}


def secret_wave(seed: int) -> Wave:
    """A key: a random Fourier series without a mean, coefficients falling as 1/j. Only their ratios matter."""
    a, b = torch.randn(2, HARMONICS, generator=generator(seed), dtype=torch.float64)
    return series(a, b)


def series(a: Tensor, b: Tensor) -> Wave:
    """Σ (a_j cos 2πjx + b_j sin 2πjx) / j. How a key becomes a wave is public; which key is not."""
    harmonic = torch.arange(1, len(a) + 1, dtype=a.dtype)
    a, b = a / harmonic, b / harmonic

    def wave(phase: Tensor) -> Tensor:
        angle = 2 * pi * phase.unsqueeze(-1) * harmonic
        return torch.cos(angle) @ a + torch.sin(angle) @ b

    return wave


def sampled(wave: Wave, size: int) -> Tensor:
    """C[k, n] = f(kT(2n + 1) / 4N) (SEAL, Sec. 4.2), each row scaled to length 1.

    Row 0 is the constant f(0), so a wave that starts at 0 has no such matrix. The paper asks for a zero mean and no
    zero at any node instead; neither is needed (the cosine has zeros at N = 12), nor are both enough (sawtooth).
    """
    index = torch.arange(size)
    # Whole numbers until the last moment: at a quarter period a square wave must not depend on rounding.
    phase = (index.outer(2 * index + 1) % (4 * size)).double() / (4 * size)
    C = wave(phase)
    lengths = C.norm(dim=1, keepdim=True)
    empty = (lengths[:, 0] <= 1e-9 * lengths.max()).nonzero()
    if len(empty):
        row = int(empty[0])
        why = "the wave is 0 at its start" if row == 0 else "the wave is 0 at all of its nodes"
        raise Unfit(f"row {row} of its {size} x {size} samples is zero ({why})")
    return C / lengths


def basis(wave: Wave, size: int, gram: str) -> Tensor:
    """Q with QᵀQ = I from the samples of a wave, in float64 (SEAL, Alg. 1); Z = QX.

    Householder QR with a positive diagonal is Gram-Schmidt in exact arithmetic, and stays orthonormal in ours. So it
    does for singular samples, by filling up with arbitrary vectors: hence the look at the condition number.
    The text orthogonalises columns, then uses rows as basis vectors: gram="column" is that, "row" keeps the order of
    the rows. For the cosine both are the DCT.
    """
    C = sampled(wave, size)
    condition = float(torch.linalg.cond(C))
    if not condition < WORST_CONDITION:
        raise Unfit(
            f"its {size} x {size} samples are nearly dependent (condition number {condition:.1g}, at most "
            f"{WORST_CONDITION:.0e} is accepted)"
        )
    return orthonormal(C, gram)


def orthonormal(C: Tensor, gram: str) -> Tensor:
    """Gram-Schmidt over the columns or the rows of C. Differentiable."""
    Q, R = torch.linalg.qr(C if gram == "column" else C.T)
    Q = Q * torch.sign(torch.diagonal(R))
    return Q if gram == "column" else Q.T.contiguous()


@lru_cache(maxsize=16)
def public_basis(wave: str, size: int, gram: str) -> Tensor:
    """The basis of a named wave. Secret ones are never kept like this."""
    return basis(WAVES[wave], size, gram)


def secret_bases(sizes: Sequence[int], gram: str, private: int) -> list[Tensor]:
    """Bases of one secret wave for all `sizes`; keys without f(0) != 0 and a fair condition number are drawn anew."""
    for draw in range(DRAWS):
        wave = secret_wave(derive(private, "wave", draw))
        try:
            return [basis(wave, size, gram) for size in sizes]
        except Unfit:
            continue
    raise ValueError(f"none of {DRAWS} secret waves gives a basis for maps of {sizes}: name a wave, e.g. 'triangle'")


def dct_basis(size: int) -> Tensor:
    """The orthonormal DCT-II. Its samples are orthogonal as they are."""
    return sampled(WAVES["cosine"], size)


def sides(shape: Shape) -> tuple[int, int]:
    """Height and width of one map: the last two dimensions, whatever stands before them (SEAL, end of Sec. 4.2).

    So tokens x width are one map a sample, and a plain vector is a map of height 1.
    """
    return (1, shape[0]) if len(shape) == 1 else (shape[-2], shape[-1])


def zigzag(height: int, width: int) -> Tensor:
    """Flat indices in zig-zag order, along anti-diagonals, turning at the rim (SEAL, Alg. 3; rectangles as well)."""
    i, j = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    diagonal = i + j
    along = torch.where(diagonal % 2 == 1, i, j)
    return (diagonal * (height + width) + along).flatten().argsort()


@torch.no_grad()
def prefix(coefficients: Tensor, energy: float) -> Tensor:
    """How many of the coefficients (last dimension, in zig-zag order) reach this share of their energy (Alg. 4).

    The fewest that do; none of a map that is all zero, and all of one that holds a NaN, so that it is seen to.
    Summed in float64: in float32 the order of summation decides.
    """
    # In place, on a copy: fresh memory for every step would cost more than the arithmetic.
    reached = coefficients.detach().to(torch.float64, copy=True).square_().cumsum_(-1)
    total = reached[..., -1:].clone()
    return ((torch.searchsorted(reached, energy * total) + 1) * (total != 0)).squeeze(-1)


class Transform(nn.Module):
    """Z = Q₁XQ₂ᵀ of every map of a cut and back, as rows of coefficients. The matrices may be a secret."""

    left: Tensor
    right: Tensor
    order: Tensor  # the zig-zag: index of the n-th coefficient
    place: Tensor  # its inverse: where in the zig-zag a coefficient stands

    def __init__(self, shape: Shape, left: Tensor, right: Tensor):
        super().__init__()
        self.shape, self.sides, self.maps = shape, sides(shape), prod(shape[:-2])
        order, dtype = zigzag(*self.sides), torch.get_default_dtype()
        buffers = {"left": left.to(dtype), "right": right.to(dtype), "order": order, "place": order.argsort()}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def down(self, z: Tensor) -> Tensor:
        """(batch, maps, coefficients), row by row of Z."""
        return (self.left @ z.reshape(len(z), self.maps, *self.sides) @ self.right.T).flatten(2)

    def zigzag(self, Z: Tensor) -> Tensor:
        """The coefficients in zig-zag order. (Several times faster than selecting by one index.)"""
        return Z.gather(2, self.order.expand_as(Z))

    def unzigzag(self, Z: Tensor) -> Tensor:
        return Z.gather(2, self.place.expand_as(Z))

    def up(self, Z: Tensor) -> Tensor:
        return (self.left.T @ Z.unflatten(2, self.sides) @ self.right).reshape(len(Z), *self.shape)


def check_energy(guard: Guard, energy: float) -> None:
    if not isinstance(energy, int | float) or isinstance(energy, bool) or not 0 < energy <= 1:
        raise ValueError(
            f"{type(guard).__name__}: energy is the share of each map's energy that is kept, above 0 and at most 1 "
            f"(the paper: 0.7); got {energy!r}"
        )


def kept_by_energy(guard: Guard, before: Bound) -> Bound:
    """What is known of rows that lose coefficients by their own energy: in L2 none gets longer.

    A row that follows from one sample then moves by at most twice its length, however little came in: where the
    prefix ends jumps with the data. Of rows that mix samples several may jump.
    """
    if before.norm is None or before.p != 2:
        return Bound(why=f"{guard} bounds no row: put Clip(norm=...) behind it")
    if before.apart:
        return Bound(norm=before.norm, moves=2 * before.norm)
    return Bound(
        norm=before.norm, why=f"{guard} keeps what the data decides, in several rows: put it before the mixing"
    )


def similarity(energy: float) -> float:
    """cos(X, X̃) of a map is the root of the energy kept, for every orthonormal Q: at least this."""
    return float(energy) ** 0.5


def stays_similar(energy: float, when: str, back: Callable[[Tensor], Tensor]) -> Claim:
    """That each map leaves as similar as its energy says. `back` makes maps of what is sent."""
    least = similarity(energy)

    def holds(sent: Sent) -> bool:
        pixels = prod(sides(tuple(sent.read.shape[1:])))
        left, came = (one.detach().double().reshape(len(one), -1, pixels) for one in (back(sent.seen), sent.read))
        lengths = left.norm(dim=-1) * came.norm(dim=-1)
        return bool(((left * came).sum(-1) >= (least - ROUNDING) * lengths).all())

    return Claim(f"similar, not secret: cos(map sent, map it read) >= {least:.3f} {when}", holds)
