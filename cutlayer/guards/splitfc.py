"""Columns that say little stay home, and the others get as many bits as each is worth."""

import heapq
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.compressor import Compressor
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator
from ..wire.codecs.columns import MOST_ENDS, MOST_WIDTH, Columned, between, fixed_bits
from .base import Guard
from .parts.claims import Claim
from .parts.straight_through import _Straight

Floats = NDArray[np.float64]
SHARES = (1.0, 0.75, 0.5, 0.25, 0.125, 0.0)  # of the columns that could have levels of their own: the search for M
MOST_LEVELS = float(1 << MOST_WIDTH)


@dataclass(frozen=True, repr=False)
class SplitFC(Guard, Compressor):
    """Columns leave by chance, the more often the more they vary, and share `budget` bits an entry (SplitFC).

    One column in `ratio` leaves on average, scaled so that the mean is right; gradients come back for these alone.
    At inference columns are drawn as well: such columns are what the body learnt to read. As `down` or `back` of a
    plan nothing is drawn, and all columns share the bits. `ends` are the bits of a column's two ends, or of its mean.
    """

    ratio: float = 16.0
    budget: float = 0.2
    ends: int = 8
    always_shown: ClassVar[int] = 2
    mixes_samples: ClassVar[bool] = True  # which columns leave, and their grids, follow from the whole batch
    makes_zeros: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(2.0, 64.0, log=True), "budget": Between(0.05, 4.0, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, int | float) or not self.ratio >= 1:
            raise ValueError(f"SplitFC: one column in `ratio` leaves, a number from 1 up; got {self.ratio!r}")
        if not isinstance(self.budget, int | float) or not 0 < self.budget <= 32:
            raise ValueError(
                f"SplitFC's budget is in bits for each number of a batch, in (0, 32]; got {self.budget!r}"
            )
        if not isinstance(self.ends, int) or not 1 <= self.ends <= MOST_ENDS:
            raise ValueError(f"SplitFC's ends is a whole number of bits from 1 to {MOST_ENDS}; got {self.ends!r}")

    @property
    def draws_anew(self) -> bool:
        return True  # which columns leave, and the grids of the batch

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Drop(self, private)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return OnColumns()

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        text = f"a batch leaves in at most {self.budget:g} bits for each number it reads"
        return (Claim(text, lambda sent: 8 * sent.size <= self.budget * sent.read.numel()),)

    @property
    def least_batch(self) -> int:
        return 2  # one sample has no spread to go by

    def least_rows(self, shape: Shape) -> int:
        least = fixed_bits(prod(shape), 0, 0, self.ends)
        rows = max(self.least_batch, int(least / (self.budget * prod(shape))))
        while not self.works_on(rows, shape):
            rows += 1
        return rows

    def works_on(self, rows: int, shape: Shape) -> bool:
        return fixed_bits(prod(shape), 0, 0, self.ends) <= self._bits(rows * prod(shape))

    def _bits(self, numbers: int) -> int:
        """What a batch of so many numbers may take, in whole bytes."""
        return 8 * int(self.budget * numbers / 8)

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """What comes over of a tensor within the budget."""
        if tensor.dim() < 2 or not tensor.numel() or tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        rows = tensor.detach().flatten(1)
        if not torch.isfinite(torch.stack(rows.aminmax()).float()).all():
            return tensor, None
        bits = self._bits(rows.numel())
        if not self.works_on(len(rows), (rows.shape[1],)):
            raise ValueError(
                f"{self}: a batch of {len(rows)} x {rows.shape[1]} may take {bits} bits, which is too few for any "
                "column: raise the budget or the batch"
            )
        packed = _fitted(rows, bits, self.ends)
        return packed.value().reshape(tensor.shape), packed


class _Drop(GuardModule):
    def __init__(self, spec: SplitFC, private: int):
        super().__init__()
        self.spec, self.private = spec, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        rows = z.flatten(1)
        chance = keep_probabilities(spreads(z.detach()), rows.shape[1] / self.spec.ratio)
        dice = torch.rand(len(chance), generator=generator(derive(self.private, batch.seed)), dtype=torch.float64)
        kept = dice.numpy() < chance
        factor = np.divide(1.0, chance, out=np.zeros_like(chance), where=kept)
        # Its gradient is dropped and scaled alike.
        scaled = torch.where(_on(kept, z), rows * _on(factor, z).to(z), 0.0).reshape(z.shape)
        seen, self.packed = self.spec.compress(scaled)
        if self.training and self.packed is not None:
            self.notes = {
                "columns": float(len(self.packed.at)),
                "bits_per_entry": 8 * self.packed.size() / rows.numel(),
            }
        return Guarded(_Straight.apply(scaled, seen))


class OnColumns(nn.Module):
    """Lets rows through as they are, and gradients only for columns of which something came."""

    def forward(self, seen: Tensor) -> Tensor:
        return torch.where((seen.detach() != 0).any(0), seen, 0.0)


def spreads(z: Tensor) -> Floats:
    """The standard deviation of each column, for maps in units of their channel's range."""
    spread = (z - z.mean(0)).square().mean(0).sqrt()  # several times as fast as z.std(0)
    if z.dim() == 4:
        extent = z.amax((0, 2, 3)) - z.amin((0, 2, 3))
        spread = spread / torch.where(extent > 0, extent, torch.ones_like(extent))[:, None, None]
    return spread.flatten().double().cpu().numpy()


def keep_probabilities(spread: Floats, total: float) -> Floats:
    """q = min(1, c spread) with c such that they add up to `total`."""
    varying = spread > 0
    if varying.sum() <= total:
        # All that vary leave, and what is left is shared by the others.
        return np.where(varying, 1.0, (total - varying.sum()) / max(1, (~varying).sum()))
    down = np.sort(spread)[::-1]
    tails = down[::-1].cumsum()[::-1]
    # With the t largest at 1, c = (total - t) / (sum of the others): the first t at which the next stays below 1.
    certain = int(np.argmax((total - np.arange(len(down))) * down <= tails))
    return np.minimum(1.0, spread * ((total - certain) / tails[certain]))


def levels(ranges: Floats, nu: float) -> Floats:
    """Q with (Q - 1)³ / Q = r² / nu: where sum r² / (Q - 1)² is stationary for a given sum of log2 Q.

    With t = Q - 1 and u = r² / nu that is t³ - ut - u = 0. It has one positive root: by Cardano up to u = 27/4, as a
    cosine beyond.
    """
    u = np.asarray(ranges, dtype=np.float64) ** 2 / nu
    small, large = np.minimum(u, 6.75), np.maximum(u, 6.75)
    first = np.cbrt(small / 2 + np.sqrt(np.maximum(small**2 / 4 - small**3 / 27, 0.0)))
    by_roots = first + small / 3 / np.maximum(first, np.finfo(np.float64).tiny)
    by_cosine = 2 * np.sqrt(large / 3) * np.cos(np.arccos(np.minimum(1.5 * np.sqrt(3 / large), 1.0)) / 3)
    return 1 + np.where(u <= 6.75, by_roots, by_cosine)


def allocate(ranges: Floats, bits: float, halvings: int = 40) -> Floats:
    """Levels from 2 up for columns of these ranges, of `bits` in all for one row: nu is found by bisection."""
    below, above = np.log(ranges.min() ** 2 / MOST_LEVELS**2 / 2), np.log(2 * ranges.max() ** 2)
    for _ in range(halvings):
        middle = (below + above) / 2
        spent = np.log2(np.clip(levels(ranges, np.exp(middle)), 2.0, MOST_LEVELS)).sum()
        below, above = (middle, above) if spent > bits else (below, middle)
    return np.clip(levels(ranges, np.exp(above)), 2.0, MOST_LEVELS)


def whole_bits(ranges: Floats, bits: int) -> NDArray[np.int64]:
    """`allocate` in whole bits a code: rounded down, and what that wastes goes where it helps most.

    Other numbers of levels than powers of two would take the bits of the next power all the same.
    """
    widths = np.floor(np.log2(allocate(ranges, bits)) + 1e-9).astype(np.int64)
    spare = bits - int(widths.sum())
    gains = [(-_gain(r, w), place) for place, (r, w) in enumerate(zip(ranges, widths, strict=True)) if w < MOST_WIDTH]
    heapq.heapify(gains)
    while spare > 0 and gains:
        _, place = gains[0]
        widths[place] += 1
        spare -= 1
        if widths[place] < MOST_WIDTH:
            heapq.heapreplace(gains, (-_gain(ranges[place], widths[place]), place))
        else:
            heapq.heappop(gains)
    return widths


def _gain(extent: float, width: int) -> float:
    """How much less r² / (Q - 1)² is with one bit more."""
    return float(extent) ** 2 * (((1 << int(width)) - 1.0) ** -2 - ((2 << int(width)) - 1.0) ** -2)


@dataclass(frozen=True)
class _Stats:
    """Of the columns of a batch."""

    low: Floats
    high: Floats
    mean: Floats
    energy: Floats

    def of(self, columns: NDArray[np.int64]) -> "_Stats":
        return _Stats(self.low[columns], self.high[columns], self.mean[columns], self.energy[columns])


def _fitted(rows: Tensor, bits: int, ends: int) -> Columned:
    """The columns that came, in no more than `bits` bits: which of them have levels of their own, and how many."""
    count, length = rows.shape
    found = torch.stack([rows.amin(0), rows.amax(0), rows.mean(0), rows.square().sum(0)]).double().cpu().numpy()
    stats = _Stats(*found)
    there = np.flatnonzero((stats.low != 0) | (stats.high != 0))
    there = there[np.argsort(-stats.energy[there], kind="stable")]
    kept = len(there)
    while kept and fixed_bits(length, kept, 0, ends) > bits:
        # Indices take more than bits for every column only where many came, so this is a step or two.
        over = fixed_bits(length, kept, 0, ends) - bits
        kept -= max(1, over // (ends + 4 + max(length - 1, 1).bit_length()))
    columns = there[:kept]
    room = [
        (graded, _room(length, kept, len(graded), ends, bits))
        for graded in _graded(stats.of(columns), _room(length, kept, 0, ends, bits), count, ends)
    ]
    graded, left = min(room, key=lambda choice: _error(stats.of(columns), choice[0], count, choice[1], ends))
    widths = np.zeros(len(columns), dtype=np.int64)
    if len(graded):
        widths[graded] = whole_bits(_extents(stats.of(columns[graded]), ends), left // count)
    order = np.argsort(columns)
    return _written(rows, columns[order], widths[order], stats.of(columns[order]), ends)


def _room(length: int, kept: int, graded: int, ends: int, bits: int) -> int:
    """Bits that are left for codes."""
    return bits - fixed_bits(length, kept, graded, ends)


def _graded(stats: _Stats, spare: int, count: int, ends: int) -> list[NDArray[np.int64]]:
    """Which columns may get levels: the widest, as many as can have a bit a code, or a part of these."""
    extent = stats.high - stats.low
    widest = np.argsort(-extent, kind="stable")[: min(int((extent > 0).sum()), max(0, spare // (ends + count)))]
    return [widest[:many] for many in sorted({int(share * len(widest)) for share in SHARES}, reverse=True)]


def _extents(stats: _Stats, ends: int) -> Floats:
    """Ranges once both ends were moved out to a grid: half a step each, on average."""
    return stats.high - stats.low + (stats.high.max() - stats.low.min()) / ((1 << ends) - 1)


def _error(stats: _Stats, graded: NDArray[np.int64], count: int, room: int, ends: int) -> float:
    """The squared error to be expected: a uniform one of a step for levels; for means what varies around them."""
    others = np.ones(len(stats.mean), dtype=bool)
    others[graded] = False
    error = 0.0
    if others.any():
        step = np.ptp(stats.mean[others]) / ((1 << ends) - 1)
        around = np.maximum(stats.energy[others] - count * stats.mean[others] ** 2, 0.0)
        error += float(around.sum() + count * others.sum() * step**2 / 12)
    if len(graded):
        extents = _extents(stats.of(graded), ends)
        error += float(count / 12 * ((extents / (allocate(extents, room / count, halvings=12) - 1)) ** 2).sum())
    return error


def _written(rows: Tensor, at: NDArray[np.int64], widths: NDArray[np.int64], stats: _Stats, ends: int) -> Columned:
    """These columns as codes. The grids are rounded to what travels before anything is measured on them."""
    top = (1 << ends) - 1
    own, mean = widths > 0, stats.mean[widths == 0]
    low, high = stats.low[own], stats.high[own]
    begins = [one.min() if len(one) else 0.0 for one in (mean, low)]
    steps = [(one.max() - least) / top if len(one) else 0.0 for one, least in zip((mean, high), begins, strict=True)]
    grids = torch.tensor([begins[0], steps[0], begins[1], steps[1]], dtype=torch.float32)
    exact = grids.double().numpy()
    step = np.where(exact[[1, 3]] > 0, exact[[1, 3]], 1.0)
    codes = (
        np.rint((mean - exact[0]) / step[0]),
        np.floor((low - exact[2]) / step[1]),
        np.ceil((high - exact[2]) / step[1]),
    )
    means, lows, highs = (_on(np.clip(code, 0, top).astype(np.int64), rows) for code in codes)
    widths_, at_, grids = _on(widths, rows), _on(at, rows), grids.to(rows.device)
    begin, each = between(lows, highs, widths_[widths_ > 0], grids.to(rows.dtype))
    each = torch.where(each > 0, each, torch.ones_like(each))
    place = ((rows[:, at_[widths_ > 0]] - begin) / each).round()
    most = ((1 << widths_[widths_ > 0]) - 1).to(rows.dtype)
    inner = torch.minimum(place.clamp_min(0), most).to(torch.int32).T.contiguous()
    return Columned(at_, widths_, means, lows, highs, inner, grids, ends, len(rows), rows.shape[1], rows.dtype)


def _on(found: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(found).to(like.device)
