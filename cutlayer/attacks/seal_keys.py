"""SEAL's key, read off the messages: what a low-pass leaves out of every map gives its basis away.

X̃ = Q₁ᵀZQ₂, where Z is empty behind a zig-zag prefix. A map of rank r below its size shows span(q_0 .. q_{r-1}) of one
side exactly: where a prefix ends inside anti-diagonal r, its last entries add a row to Z or a column, never both. The
zig-zag walks odd anti-diagonals down from row 0, so there Q₁ is untouched, and on even ones Q₂. With `fixed` all
prefixes are alike, and all maps together leave the same directions q_i ⊗ q_j empty.

How a key becomes a basis is public (sixteen numbers, `periodic.series`). So the spans are not only looked at: the
one wave is sought that has them, which gives the vectors between two spans as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..guards import SEAL, Chain, Clip, Guard
from ..guards.base import Shape
from ..guards.periodic import HARMONICS, Transform, Unfit, orthonormal, sampled, series, sides, zigzag
from ..guards.seal import LowPass

MOST_MAPS = 8192
EMPTY = 3e-6  # of the largest singular value: below it is rounding of float32
LEAST_MAPS = 5  # maps of one rank before their span counts: a rank is sometimes misread
STARTS = 24
EXPLAINED = 1e-6  # a misfit that is no more than rounding


class Key(NamedTuple):
    """A basis for each side; `misfit` is the share of what should be empty under this key that is not."""

    left: Tensor
    right: Tensor
    misfit: float
    kept: int | None = None  # coefficients left of every map, where that is fixed


def recoverable(guard: Guard, shape: Shape) -> bool:
    """Whether the maps of a secret transform reach the server as they are, or merely scaled."""
    parts = guard.parts if isinstance(guard, Chain) else (guard,)
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
    return as_sent and seal.energy < 1 and (min(sides(shape)) > 1 or seal.fixed)


def recover(seen: Tensor, seal: SEAL, seed: int) -> Key | None:
    """The key behind these messages, or None where they do not show it."""
    height, width = sides(tuple(seen.shape[1:]))
    maps = seen.detach().cpu().double().reshape(-1, height, width)
    lengths = maps.flatten(1).norm(dim=1)
    maps = maps[lengths > 0] / lengths[lengths > 0].reshape(-1, 1, 1)
    # Spread over all messages: one batch may hold few kinds of maps.
    maps = maps[torch.linspace(0, len(maps) - 1, min(len(maps), MOST_MAPS)).long()]
    if not len(maps):
        return None
    if seal.fixed:
        filled = _filled(maps)
        if filled.shape[1] == height * width:
            return None
        misfit = _Filled(filled, zigzag(height, width)[filled.shape[1] :])
        return _fit(misfit, (height, width), seal.gram, seed, filled.shape[1])
    spaces = spans(maps)
    return _fit(_Tilt(spaces), (height, width), seal.gram, seed) if spaces else None


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


def _filled(maps: Tensor) -> Tensor:
    """The directions that some map has anything in, as orthonormal columns."""
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


def _fit(
    misfit: Callable[[Tensor, Tensor], Tensor],
    sizes: tuple[int, int],
    gram: str,
    seed: int,
    kept: int | None = None,
) -> Key | None:
    """The wave whose bases fit best, over a few starts: keys of the attacker's own drawing, moved downhill."""
    draw = torch.Generator().manual_seed(seed % 2**63)
    best: Key | None = None
    for _ in range(STARTS):
        key = torch.randn(2, HARMONICS, generator=draw, dtype=torch.float64)
        found = _downhill(key, misfit, sizes, gram)
        if found is None:
            continue
        again = best is not None and abs(found.misfit - best.misfit) < 0.01 * best.misfit
        if best is None or found.misfit < best.misfit:
            best = found._replace(kept=kept)
        if again or best.misfit < EXPLAINED:
            break  # two ways down to one place: there is hardly a lower one
    return best


@torch.enable_grad()
def _downhill(
    start: Tensor, misfit: Callable[[Tensor, Tensor], Tensor], sizes: tuple[int, int], gram: str
) -> Key | None:
    key = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [key], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def bases() -> tuple[Tensor, Tensor]:
        left = orthonormal(sampled(series(key[0], key[1]), sizes[0]), gram)
        return left, left if sizes[0] == sizes[1] else orthonormal(sampled(series(key[0], key[1]), sizes[1]), gram)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = misfit(*bases())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    try:
        optimizer.step(closure)  # type: ignore[arg-type]
        left, right = (side.detach() for side in bases())
    except (Unfit, RuntimeError):
        return None  # this start ran into a wave that is no basis
    value = float(misfit(left, right))
    return Key(left, right, value) if value == value else None
