"""SafeSplit's idea (Rieger et al. 2025) for rounds that merge: what does not move with the majority is taken back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from .base import NET, Update, check_number
from .parts.merging import Merging


@dataclass(frozen=True, repr=False)
class Rollback(Merging):
    """The mean of those updates that a majority agrees with, in low frequencies and in rotation; others are undone.

    All clients of a round start from one checkpoint. A client stays if it is among the ⌊n/2⌋ + 1 that lie closest
    together, both by the lowest `share` of the frequencies of its move (a cosine transform of every tensor) and by
    how far it turned the weights. Everybody else's turn is rolled back: it leaves no trace. Samples do not count.
    """

    share: float = 0.25  # of the frequencies

    def __post_init__(self) -> None:
        check_number(self, "share", 0, 1, fix=", of the frequencies, the lowest of which are compared")

    @property
    def least(self) -> int:
        return 3

    def shares(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> list[float]:
        super().shares(current, updates)  # refuses a round without samples
        kept = self.benign(current, updates)
        return (kept / kept.sum()).tolist()

    def benign(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> Tensor:
        """Which updates stay: those in both majorities. Two majorities have somebody in common."""
        apart = torch.zeros(len(updates), len(updates), dtype=torch.float64)
        inner = torch.zeros(len(updates), 3, dtype=torch.float64)  # before·after, before·before, after·after
        for name, now in current.items():
            if not name.startswith(NET) or not now.is_floating_point():
                continue
            before = now.detach().double().flatten().cpu()
            after = torch.stack([update.state[name].detach().double().flatten().cpu() for update in updates])
            low = low_frequencies(after - before, self.share)
            apart += torch.cdist(low, low) ** 2
            inner += torch.stack([after @ before, (before @ before).expand(len(after)), after.square().sum(1)], dim=1)
        lengths = (inner[:, 1] * inner[:, 2]).sqrt().clamp(min=torch.finfo(inner.dtype).tiny)
        turned = (inner[:, 0] / lengths).clamp(-1, 1).acos()
        return _majority(apart.sqrt()) & _majority((turned[:, None] - turned[None, :]).abs())


def low_frequencies(rows: Tensor, share: float) -> Tensor:
    """The lowest coefficients of the orthonormal cosine transform (DCT-II) of every row, by one FFT."""
    size = rows.shape[1]
    count = max(1, ceil(share * size))
    mirrored = torch.fft.rfft(torch.cat([rows, rows.flip(1)], dim=1), dim=1)[:, :count]
    turns = torch.arange(count, dtype=rows.dtype) * (-torch.pi / (2 * size))
    found = (mirrored * torch.polar(torch.ones_like(turns), turns)).real / (2 * size) ** 0.5
    found[:, 0] /= 2**0.5
    return found


def _majority(apart: Tensor) -> Tensor:
    """The ⌊n/2⌋ + 1 with the nearest neighbours; those that score the same as the last of them stay as well."""
    many = len(apart) // 2 + 1
    scores = apart.sort(dim=1).values[:, :many].sum(dim=1)  # its own zero is one of them
    worst = scores.sort().values[many - 1]
    return scores <= worst * (1 + 1e-9) + torch.finfo(scores.dtype).tiny
