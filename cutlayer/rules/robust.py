"""Merges that a few bad clients cannot bend. Every client counts once: a liar could claim any number of samples.

Statistics are merged the same way as weights; a mean of them would let one client spoil every BatchNorm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from .base import NET, Update, check_number
from .parts.merging import Merging

AT_ONCE = 2**22  # numbers of all clients side by side, so that a thousand clients need no more memory than ten


@dataclass(frozen=True, repr=False)
class _OneEach(Merging):
    def shares(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> list[float]:
        super().shares(current, updates)  # refuses a round without samples
        return [1 / len(updates)] * len(updates)


@dataclass(frozen=True, repr=False)
class _Sorted(_OneEach):
    """Coordinate by coordinate: the mean of those moves that are left between the lowest and the highest."""

    def cut(self, count: int) -> int:
        """How many moves of `count` are dropped at either end."""
        raise NotImplementedError

    @property
    def least(self) -> int:
        return 3

    def moved(self, now: Tensor, arrived: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        cut, parts = self.cut(len(arrived)), []
        for start, columns in _side_by_side(now, arrived):
            middle = _ordered(columns.T.contiguous())[:, cut : len(arrived) - cut]
            parts.append((start.double()[:, None] - middle.double()).mean(dim=1))
        return torch.cat(parts).view_as(now) if parts else torch.zeros_like(now, dtype=torch.float64)


@dataclass(frozen=True, repr=False)
class Median(_Sorted):
    """The median of the clients' weights, coordinate by coordinate (Yin et al. 2018); samples do not count."""

    def cut(self, count: int) -> int:
        return (count - 1) // 2


@dataclass(frozen=True, repr=False)
class TrimmedMean(_Sorted):
    """The mean without the `share` highest and lowest of each coordinate (Yin et al. 2018); samples do not count.

    At least one is dropped at either end, if three or more clients are there.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "share", 0, 0.5, fix=", dropped at either end; Median drops all but the middle")

    def cut(self, count: int) -> int:
        return min(ceil(self.share * count), (count - 1) // 2)


@dataclass(frozen=True, repr=False)
class Krum(_OneEach):
    """The `keep` updates with the closest neighbours, of which `bad` may be lies (Blanchard et al. 2017).

    The promise needs 2·bad + 3 updates a round. Those that score the same are kept together, so that their order does
    not matter; with few clients the two closest ones always do. Samples do not count.
    """

    bad: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        for name, least in (("bad", 0), ("keep", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"Krum: {name} is a whole number from {least} up; got {value!r}")

    @property
    def least(self) -> int:
        return max(2 * self.bad + 3, self.keep + self.bad)

    def shares(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> list[float]:
        super().shares(current, updates)
        scores = self._scores(current, updates)
        worst = scores.sort().values[min(self.keep, len(updates)) - 1]
        kept = scores <= worst * (1 + 1e-9)
        return (kept / kept.sum()).tolist()

    def _scores(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> Tensor:
        """Of each update: the sum of squared distances to the n − bad − 2 others nearest to it."""
        count = len(updates)
        apart = torch.zeros(count, count, dtype=torch.float64)
        for name in (name for name, now in current.items() if name.startswith(NET) and now.is_floating_point()):
            for start, rows in _side_by_side(current[name], [update.state[name] for update in updates]):
                apart += _squared_distances(rows.double() - start.double()).cpu()
        apart.fill_diagonal_(-1)  # each is its own nearest, whatever rounding says
        apart = apart.sort(dim=1).values
        return apart[:, 1 : 1 + max(1, count - self.bad - 2)].sum(dim=1)


def _side_by_side(now: Tensor, arrived: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of one tensor, as (what it was, a row for every client)."""
    before, flat = now.flatten(), [tensor.to(now).flatten() for tensor in arrived]
    width = max(1, AT_ONCE // len(flat))
    for first in range(0, before.numel(), width):
        piece = slice(first, first + width)
        yield before[piece], torch.stack([tensor[piece] for tensor in flat])


def _ordered(rows: Tensor) -> Tensor:
    """Each row from its lowest to its highest. On the CPU numpy sorts long rows about six times faster."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.sort(rows.detach().numpy(), axis=1))
    return rows.sort(dim=1).values


def _squared_distances(moves: Tensor) -> Tensor:
    """Between all rows, from one product of matrices: ‖a‖² + ‖b‖² − 2 a·b.

    Of moves, not of weights: those are small beside the weights, and nothing is lost in the difference.
    """
    products = moves @ moves.T
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)
