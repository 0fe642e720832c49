"""Pieces of an activation are replaced by the nearest of a few words, which are found anew for each batch."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, OneOf, Search
from ..core.seeds import derive, generator
from ..wire.codecs.codebook import MOST_WORDS, Worded, book_of
from .base import Guard
from .parts.straight_through import _Straight

_TRIED = 8  # points for each word among which the first words are drawn
_BLOCK = 1 << 24  # distances that are held at once


@dataclass(frozen=True, repr=False)
class FedLite(Guard):
    """Each row cut into `parts`, each part replaced by the nearest of `centroids` words of its group (FedLite).

    The words are found by k-means in every batch and travel with it. Gradients pass straight through; a penalty of
    `weight` draws activations to their words.
    """

    parts: int = 288
    groups: int = 1
    centroids: int = 16
    weight: float = 0.001
    rounds: int = 5  # of Lloyd's
    always_shown: ClassVar[int] = 3
    mixes_samples: ClassVar[bool] = True  # the words a sample is written in are those of the whole batch
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"parts": OneOf(16, 32, 64, 96, 288), "centroids": Between(2, 32, log=True)}

    def __post_init__(self) -> None:
        for name, least in (("parts", 1), ("groups", 1), ("centroids", 1), ("rounds", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"FedLite's {name} is a whole number from {least} up; got {value!r}")
        if self.groups > self.parts:
            raise ValueError(
                f"FedLite's groups share out the {self.parts} parts, so at most that many: {self.groups}"
            )
        if self.centroids > MOST_WORDS:
            raise ValueError(f"FedLite's centroids are {MOST_WORDS} at most; got {self.centroids}")
        if not isinstance(self.weight, int | float) or not 0 <= self.weight < float("inf"):
            raise ValueError(f"FedLite's weight is a number from 0 up; got {self.weight!r}")

    def out_shape(self, shape: Shape) -> Shape:
        if self.parts > prod(shape):
            raise ValueError(f"{self} cuts a row into {self.parts} parts, but {shape} has {prod(shape)} numbers")
        return shape

    @property
    def draws_anew(self) -> bool:
        return True  # words are made for each batch

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        self.out_shape(shape)
        return _Words(self, private)


class _Words(GuardModule):
    def __init__(self, spec: FedLite, private: int):
        super().__init__()
        self.spec, self.private = spec, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        seen, self.packed = self.worded(z.detach(), generator(derive(self.private, batch.seed)))
        penalty = {}
        if self.training and self.spec.weight:
            # Its gradient is the correction weight * (z - z̃), in the mean over samples as the loss is.
            penalty["fedlite"] = self.spec.weight / 2 * (z - seen).square().sum() / len(z)
        if self.training:
            lost, all = (z.detach() - seen).square().sum(), z.detach().square().sum()
            self.notes = {"unexplained": float(lost / all.clamp_min(1e-30))}
        return Guarded(_Straight.apply(z, seen), penalty)

    @torch.no_grad()
    def worded(self, z: Tensor, draw: torch.Generator) -> tuple[Tensor, Any]:
        rows = z.flatten(1)
        if not rows.numel() or not torch.isfinite(rows.float()).all():
            return z, None
        parts, groups = self.spec.parts, self.spec.groups
        wide = -(-rows.shape[1] // parts)
        used = -(-rows.shape[1] // wide)  # a length that parts do not divide: the last are empty, and left out
        cut = pad(rows, (0, used * wide - rows.shape[1])).reshape(len(rows), used, wide).float()
        which = book_of(used, min(groups, used))
        numbers = torch.empty(len(rows), used, dtype=torch.int64, device=z.device)
        books = []
        for group in range(min(groups, used)):
            mine = (which == group).nonzero().flatten().to(z.device)
            points = cut[:, mine].reshape(-1, wide)
            book, found = k_means(points, self.spec.centroids, self.spec.rounds, draw)
            numbers[:, mine] = found.reshape(len(rows), len(mine))
            books.append(book)
        packed = Worded(torch.stack(books), numbers, rows.shape[1], z.dtype)
        return packed.value().reshape(z.shape), packed


def k_means(points: Tensor, centroids: int, rounds: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """(words, the nearest word of each point): first words as in k-means++, then Lloyd's rounds.

    A function of the points and the draw alone: sums are products of matrices, which a GPU does in a fixed order.
    """
    words = _first_words(points, centroids, draw)
    for _ in range(rounds):
        total, count = torch.zeros_like(words), torch.zeros_like(words[:, :1])
        for block in points.split(_block(len(words))):
            member = (nearest(block, words)[:, None] == torch.arange(len(words), device=words.device)).to(points)
            total, count = total + member.T @ block, count + member.sum(0)[:, None]
        words = torch.where(count > 0, total / count.clamp_min(1), words)  # a word that nobody is near stays
    return words, torch.cat([nearest(block, words) for block in points.split(_block(len(words)))])


def nearest(points: Tensor, words: Tensor) -> Tensor:
    """By ‖p - w‖² less ‖p‖², which is the same for all words."""
    return torch.addmm(words.square().sum(1), points, words.T, alpha=-2).min(1).indices  # argmin takes longer


def _first_words(points: Tensor, centroids: int, draw: torch.Generator) -> Tensor:
    """Points drawn one after another, each by its squared distance to the words so far."""
    # On the CPU: a running sum on a GPU is not the same twice.
    tried = points.cpu()[torch.randperm(len(points), generator=draw)[: _TRIED * centroids]]
    chosen, away = [0], (tried - tried[0]).square().sum(1)
    for die in torch.rand(min(centroids, len(points)), generator=draw, dtype=torch.float64)[1:]:
        # The first place where the sum passes the die. Where all distances are 0 there is nothing left to tell apart.
        sums = away.double().cumsum(0)
        at = min(int(torch.searchsorted(sums, (die * sums[-1]).reshape(1), right=True)), len(tried) - 1)
        chosen.append(at)
        away = torch.minimum(away, (tried - tried[at]).square().sum(1))
    return tried[chosen].to(points.device)


def _block(words: int) -> int:
    return max(1, _BLOCK // words)
