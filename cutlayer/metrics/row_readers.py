"""Readers of records and series: closed form, fully connected, and for series 1-D convolutions.

What they give is not cut to [0, 1], as pixels are: numbers of a table lie where they lie.
"""

from collections.abc import Callable
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .columns import Limits, skill
from .components import Components
from .readers import Before, Reader, fit, ridge
from .series import correlation_either

LEAST = 1e-6  # variance below which a feature is taken for constant
WIDE, KEPT = 256, 64  # numbers in a message from which a fully connected reader is given its components, so many
DECAY = 1.0  # of AdamW: there are fewer records than weights, and noise is learnt by heart without it


class Size(NamedTuple):
    """How large a reader is, and how long it learns."""

    steps: int
    width: int  # channels of a convolution
    hidden: int  # of a fully connected reader
    batch: int = 32
    seconds: float = inf  # of CPU time


def likeness(truth: Tensor, guess: Tensor) -> Tensor:
    """What a reader is chosen by, one value a sample: skill of records, correlation of series."""
    return correlation_either(truth, guess) if truth.dim() == 3 else skill(truth, guess, truth)


class Pairs(NamedTuple):
    """What was sent and what stands behind it, to learn from and held out."""

    seen: Tensor
    truth: Tensor
    held_seen: Tensor
    held_truth: Tensor


def train_reader(name: str, size: Size, pairs: Pairs, undo: nn.Module | None = None) -> Reader | None:
    """The reader of this name for records or series; None: it cannot read such messages."""
    seen, truth, held = pairs.seen, pairs.truth, pairs.held_truth
    if truth.dim() == 2:
        # Nobody is scored beyond these limits, and squared errors of a few outliers would be all that is learnt.
        limits = Limits.of(truth)
        truth, held = limits.inside(truth).to(truth), limits.inside(held).to(held)
    if name == "ridge":
        return ridge(seen, truth, pairs.held_seen, held, clamp=False)
    rows = tuple(truth.shape[1:])
    step, network = network_for(name, seen, rows, size, undo)
    if network is None:
        return None
    with torch.no_grad():
        inputs = seen if step is None else step(seen)
    trained = fit(
        network.to(seen), inputs, truth, steps=size.steps, batch=size.batch, loss=error_of(truth), decay=DECAY,
        seconds=size.seconds,
    )  # fmt: skip
    return Before(step, trained)


def network_for(
    name: str, seen: Tensor, rows: tuple[int, ...], size: Size, undo: nn.Module | None = None
) -> tuple[nn.Module | None, nn.Module | None]:
    """(what to do with messages first, the network to train); no network where the reader has no way to read them."""
    if name == "mlp":
        step = Components(seen, KEPT) if prod(seen.shape[1:]) > WIDE else nn.Flatten()
        return step, RowReader(step(seen[:1]).shape[1], rows, size.hidden)
    with torch.no_grad():
        lines = seen[:1] if undo is None else undo(seen[:1])
    if len(rows) != 2 or lines.dim() != 3:  # a convolution reads series from channels along time
        return None, None
    return undo, SeriesReader(tuple(lines.shape[1:]), rows, size.width)


def error_of(truth: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Squared error in units of each feature's own variance: all columns count alike, however they are scaled."""
    over = (0,) if truth.dim() == 2 else (0, 2)
    variance = truth.var(over, keepdim=True, correction=0)
    weight = torch.where(variance > LEAST, 1 / variance.clamp_min(LEAST), 0.0)
    return lambda guess, wanted: ((guess - wanted).square() * weight).mean()


class RowReader(nn.Module):
    """Fully connected beside a linear map: what a linear reader finds is found at once, the rest is learnt."""

    def __init__(self, inputs: int, rows: tuple[int, ...], hidden: int):
        super().__init__()
        self.rows = rows
        self.straight = nn.Linear(inputs, prod(rows))
        self.bent = nn.Sequential(
            nn.Linear(inputs, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, hidden // 2), nn.LeakyReLU(0.1),
            nn.Linear(hidden // 2, prod(rows)),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return (self.straight(z) + self.bent(z)).reshape(-1, *self.rows)


class SeriesReader(nn.Module):
    """Convolutions at the length of the cut, then along the length of the series."""

    def __init__(self, cut: tuple[int, ...], rows: tuple[int, ...], width: int):
        super().__init__()
        channels, length = rows
        self.before = nn.Sequential(
            nn.Conv1d(cut[0], width, 5, padding=2), nn.LeakyReLU(0.1), nn.Conv1d(width, width, 5, padding=2),
            nn.LeakyReLU(0.1),
        )  # fmt: skip
        self.longer = nn.Upsample(size=length, mode="linear")
        self.after = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.LeakyReLU(0.1), nn.Conv1d(width, channels, 5, padding=2)
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.after(self.longer(self.before(z)))
