"""SEAL's key, read off the messages: what a low-pass leaves out of every map gives its basis away.

X̃ = Q₁ᵀZQ₂, where Z is empty behind a zig-zag prefix. Two things show in the messages, whoever holds the key:

- Ranks. A map of rank r below its size shows span(q_0 .. q_{r-1}) of one side exactly: where a prefix ends inside
  anti-diagonal r, its last entries add a row to Z or a column, never both. The zig-zag walks odd anti-diagonals down
  from row 0, so there Q₁ is untouched, and on even ones Q₂.
- Empty directions. All maps of one channel together fill as many directions as the longest of their prefixes, c. So
  q_i ⊗ q_j is empty for every place from the c-th on.

How a key becomes a basis is public (sixteen numbers, `periodic.series`), and the one wave is sought that fits. Under
the right key every map ends in zeros, under a wrong one hardly any: the attacker can tell which one it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...guards import SEAL, Clip, Guard
from ...guards.parts.periodic import HARMONICS, Transform, Unfit, orthonormal, sampled, series, sides, zigzag
from ...guards.seal import LowPass

MOST_MAPS = 8192  # whose ranks are looked at
EMPTY = 3e-6  # of the largest singular value: below it is rounding of float32
LEAST_MAPS = 5  # maps of one rank before their span counts: a rank is sometimes misread
MOST_GROUPS = 4  # channels whose empty directions are used, those with the most
SATURATED = 0.9  # share of all directions that half of a channel's maps must fill, or more maps would fill more
TOLERANCES = (1e-4, 1e-3, 1e-2)  # of a map's length: what passes for zero
LEAST_EMPTY = 0.02  # share of coefficients that must be empty under a key before it counts as one
STARTS = 24
EXPLAINED = 1e-6  # a misfit that is no more than rounding

Misfit = Callable[[Tensor, Tensor], Tensor]  # of a left and a right basis; 0: they explain what was seen


class Key(NamedTuple):
    """A basis for each side, and the share of all coefficients that are empty under them."""

    left: Tensor
    right: Tensor
    empty: float = 0.0
    kept: int | None = None  # coefficients left of every map, where that is fixed


def recoverable(guard: Guard, shape: Shape) -> bool:
    """Whether the maps of a secret transform reach the server as they are, or merely scaled."""
    parts = guard.stages()
    keyed = [place for place, part in enumerate(parts) if part.has_key]
    if len(keyed) != 1 or not isinstance(parts[keyed[0]], SEAL):
        return False
    (place,) = keyed
    for part in parts[:place]:
        shape = part.out_shape(shape)
    seal = parts[place]
    assert isinstance(seal, SEAL)
    as_sent = all(part.client_only or isinstance(part, Clip) for part in parts[place + 1 :])
    # One row has no rank to read. All rows together still show what is always empty.
    return as_sent and seal.energy < 1 and (min(sides(seal.maps(shape))) > 1 or seal.fixed)


def recover(seen: Tensor, seal: SEAL, seed: int) -> Key | None:
    """The key behind these messages, or None where they do not show it."""
    height, width = sides(seal.maps(tuple(seen.shape[1:])))
    maps = seen.detach().cpu().double().reshape(len(seen), -1, height, width)
    lengths = maps.flatten(2).norm(dim=2)
    maps = maps / torch.where(lengths == 0, 1.0, lengths)[..., None, None]
    alive = maps[lengths > 0]
    if not len(alive):
        return None
    # Spread over all messages: one batch may hold few kinds of maps.
    alive = alive[torch.linspace(0, len(alive) - 1, min(len(alive), MOST_MAPS)).long()]
    channels = [maps[:, number][lengths[:, number] > 0] for number in range(maps.shape[1])]
    filled = sorted(filter(None, map(_filled, [alive, *channels])), key=lambda space: len(space.places), reverse=True)
    shown: list[Misfit] = [_Sum(filled[:MOST_GROUPS])] if filled else []
    if not seal.fixed and (spaces := spans(alive)):
        shown.append(_Tilt(spaces))
    found = [_fit(misfit, (height, width), seal.gram, seed) for misfit in shown]
    keys = [key._replace(empty=emptiness(key, alive)) for key in found if key is not None]
    best = max(keys, key=lambda key: key.empty, default=None)
    if best is None or best.empty < LEAST_EMPTY:
        return None
    # What is fixed is the same in every channel; the pool of all fills it soonest.
    return best._replace(kept=max(space.filled.shape[1] for space in filled)) if seal.fixed else best


def emptiness(key: Key, maps: Tensor) -> float:
    """The mean share of coefficients behind the last one that is not zero, over a few tolerances."""
    Z = (key.left @ maps @ key.right.T).flatten(1)[:, zigzag(*maps.shape[1:])].abs()
    number = torch.arange(1, Z.shape[1] + 1)
    last = torch.stack([((tolerance < Z) * number).amax(1) for tolerance in TOLERANCES])
    return 1 - float(last.double().mean()) / Z.shape[1]


def install(key: Key, module: nn.Module) -> None:
    """Put a key into a copy of the guard."""
    for inner in module.modules():
        if isinstance(inner, LowPass):
            inner.transform = Transform(inner.transform.shape, key.left, key.right)
            inner.count = key.kept


class Span(NamedTuple):
    side: int  # 0: of Q₁, 1: of Q₂
    rank: int
    projector: Tensor
    maps: int


def spans(maps: Tensor) -> list[Span]:
    """span(q_0 .. q_{r-1}) for every rank r that was observed, from the side that shows it exactly.

    Projectors are averaged, so that a few misread ranks do not tilt it.
    """
    left, values, right = torch.linalg.svd(maps, full_matrices=False)
    ranks = (values > EMPTY * values[:, :1]).sum(1)
    found, square = [], maps.shape[1] == maps.shape[2]
    for rank in range(1, values.shape[1]):
        pick = ranks == rank
        if pick.sum() < LEAST_MAPS:
            continue
        side = 0 if rank % 2 else 1
        rows = left[pick, :, :rank].mT if side == 0 else right[pick, :rank]
        leading = torch.linalg.eigh((rows.mT @ rows).mean(0)).eigenvectors[:, -rank:]
        # Both sides of a square map have the same basis.
        found.append(Span(0 if square else side, rank, leading @ leading.T, int(pick.sum())))
    return found


def _filled(maps: Tensor) -> "_Filled | None":
    """The directions that these maps fill, or None if they fill all of them or more maps would fill more."""
    every, half = (_directions(some) for some in (maps, maps[::2]))
    places = zigzag(*maps.shape[1:])[every.shape[1] :]
    return _Filled(every, places) if len(places) and half.shape[1] >= SATURATED * every.shape[1] > 0 else None


def _directions(maps: Tensor) -> Tensor:
    rows = maps.flatten(1)
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    return vectors[:, values > EMPTY**2 * values[-1]]


@dataclass
class _Tilt:
    """How far the leading vectors of a basis stick out of the spans that were seen."""

    spaces: list[Span]

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        out = []
        for side, rank, projector, _ in self.spaces:
            q = (left, right)[side][:rank]
            out.append((q - q @ projector).square().sum() / rank)
        return torch.stack(out).mean()


@dataclass
class _Filled:
    """How much the directions that no prefix reaches have in common with those that maps fill."""

    filled: Tensor
    places: Tensor

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        products = (left[:, None, :, None] * right[None, :, None, :]).flatten(2).flatten(0, 1)[self.places]
        return (products @ self.filled).square().sum() / len(self.places)


@dataclass
class _Sum:
    parts: "list[_Filled]"

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.stack([part(left, right) for part in self.parts]).mean()


def _fit(misfit: Misfit, sizes: tuple[int, int], gram: str, seed: int) -> Key | None:
    """The wave whose bases fit best, over a few starts: keys of the attacker's own drawing, moved downhill."""
    draw = torch.Generator().manual_seed(seed % 2**63)
    best, least = None, float("inf")
    for _ in range(STARTS):
        key = torch.randn(2, HARMONICS, generator=draw, dtype=torch.float64)
        bases = _downhill(key, misfit, sizes, gram)
        value = float(misfit(*bases)) if bases is not None else float("nan")
        if bases is None or value != value:
            continue
        again = abs(value - least) < 0.01 * least
        if value < least:
            best, least = Key(*bases), value
        if again or least < EXPLAINED:
            break  # two ways down to one place: there is hardly a lower one
    return best


@torch.enable_grad()
def _downhill(start: Tensor, misfit: Misfit, sizes: tuple[int, int], gram: str) -> tuple[Tensor, Tensor] | None:
    key = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [key], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def bases() -> tuple[Tensor, Tensor]:
        wave = series(key[0], key[1])
        left = orthonormal(sampled(wave, sizes[0]), gram)
        return left, left if sizes[0] == sizes[1] else orthonormal(sampled(wave, sizes[1]), gram)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = misfit(*bases())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    try:
        optimizer.step(closure)  # type: ignore[arg-type]
        left, right = bases()
    except (Unfit, RuntimeError):
        return None  # this start ran into a wave that is no basis
    return left.detach(), right.detach()
