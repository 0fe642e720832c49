"""Micro-aggregation (KD-UFSL): samples leave in groups of at least k, as the mean of their group."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, OneOf, Search
from ..core.seeds import derive, generator
from .base import Bound, Guard
from .parts.claims import Claim, Sent
from .parts.grouping import Groups, consecutive, mdav, mdav_within_classes, squared_distances
from .parts.projection import Fast

GROUPINGS = ("mdav", "random", "sorted", "class")


@dataclass(frozen=True, repr=False)
class KAnonymous(Guard):
    """Micro-aggregation: only the means of groups of k or more samples leave (KD-UFSL).

    `grouping` says who shares a row: "mdav", neighbours in the batch; "class", the same with labels kept apart while
    training (so that a row implies its label); "sorted", neighbours along one public direction; "random", whoever
    is drawn, the only one that noise behind it can be calibrated to. `sketch` measures the distances on a random
    projection to that many numbers: faster on wide cuts, k holds all the same.
    """

    k: int = 5
    grouping: str = "mdav"
    sketch: int = 0
    mixes_samples: ClassVar[bool] = True
    instead: ClassVar[str] = "a smaller k"
    search: ClassVar[Search] = {"k": Between(2, 10), "grouping": OneOf("mdav", "random")}

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 2:
            raise ValueError(f"KAnonymous: k samples share a row, a whole number from 2 up; got {self.k!r}")
        if self.grouping not in GROUPINGS:
            raise ValueError(f"KAnonymous: grouping is one of {', '.join(GROUPINGS)}; got {self.grouping!r}")
        if not isinstance(self.sketch, int) or self.sketch < 0:
            raise ValueError(f"KAnonymous: sketch is a width such as 128, 0 for exact distances; got {self.sketch!r}")
        if self.sketch and self.grouping in ("random", "sorted"):
            raise ValueError(f"{self}: this grouping measures no distances, so leave sketch out")

    @property
    def reads_classes(self) -> bool:  # type: ignore[override]
        return self.grouping == "class"

    @property
    def least_batch(self) -> int:
        return self.k

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Share(self, prod(shape), public, private)

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        text = (
            f"{self.k}-anonymous within a batch: every row that leaves stands for at least {self.k} samples of the "
            "same client"
        )
        # What follows works on these rows, each for itself or (refused in a chain) on all of them.
        return (Claim(text, self._is_shared, lambda later, shape: not later.mixes_samples),)

    def _is_shared(self, sent: Sent) -> bool:
        return sent.rows is not None and int(sent.rows.bincount(minlength=len(sent.seen)).min()) >= self.k

    def bound(self, before: Bound) -> Bound:
        # A mean is no longer than the longest of its members, in any norm; what differs is how many means move.
        kept = Bound(norm=before.norm, p=before.p)
        if self.grouping == "class":
            return kept._replace(
                why=f"the groups of {self} follow the labels, which no noise hides: use grouping='random' behind "
                "Clip, or 'mdav' behind the noise"
            )
        if before.release is not None:
            return before  # the groups are made of what was released already
        if self.grouping == "random":
            if before.moves is None:
                return kept._replace(why=before.why)
            # A sample that moved its own row alone moves one mean, by 1/k of that at most: 2C/k behind Clip(norm=C).
            # Where it moved several rows, means bring them no further apart.
            return kept._replace(moves=before.moves / (self.k if before.apart else 1))
        moved = (
            "replacing one sample may move every row, and how many there are follows from the batch"
            if self.grouping == "sorted"
            else "replacing one of 256 samples changed 16 to 25 of 51 rows on average"
        )
        return kept._replace(
            why=f"the groups of {self} depend on the data ({moved}), so noise for one row of k samples would not "
            "give (ε, δ): use grouping='random', or put Clip and the noise before it"
        )


class _Share(GuardModule):
    direction: Tensor

    def __init__(self, spec: KAnonymous, width: int, public: int, private: int):
        super().__init__()
        self.spec, self.private = spec, private
        # No less private than the head: which distances were measured need not be known to anyone.
        narrow = 0 < spec.sketch < width
        self.sketch = Fast().build(width, spec.sketch, derive(private, "sketch")) if narrow else None
        if spec.grouping == "sorted":
            direction = torch.randn(width, generator=generator(public), dtype=torch.float64)
            self.register_buffer("direction", direction, persistent=False)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if len(z) < self.spec.k:
            raise ValueError(
                f"{self.spec} sends {self.spec.k} samples as one, and there are {len(z)}: collect at least "
                f"{self.spec.k} before sending, or lower k"
            )
        draw = generator(derive(self.private, batch.seed))
        with torch.no_grad():
            groups = self._groups(z.detach().flatten(1), batch, draw)
            # In the order they were found rows would tell more than their values do, such as who came first.
            rows = np.empty(len(z), dtype=np.int64)
            for row, number in enumerate(torch.randperm(len(groups), generator=draw).tolist()):
                rows[groups[number]] = row
            index = torch.from_numpy(rows).to(z.device)
            member = one_hot(index, len(groups)).to(z.dtype)
            share = (member / member.sum(0)).T
        # A product, not index_add: on a GPU that one adds in any order, and a replayed step must be the same step.
        # With the groups fixed its gradient is exact: a member gets 1/|group| of what its row gets.
        flat = z.flatten(1)
        means = share @ flat
        if self.training:
            self.notes = {"groups": float(len(groups)), "unexplained": unexplained(flat, means, share)}
        return Guarded(means.reshape(-1, *z.shape[1:]), rows=index)

    def _groups(self, flat: Tensor, batch: Batch, draw: torch.Generator) -> Groups:
        k, grouping = self.spec.k, self.spec.grouping
        if grouping == "random":
            return consecutive(torch.randperm(len(flat), generator=draw), k)
        if grouping == "sorted":
            return consecutive((flat.double() @ self.direction).argsort(stable=True), k)
        distances = squared_distances(self._sketched(flat))
        # In service there are no labels to go by; a test's must not help.
        if grouping == "class" and self.training:
            if batch.y.dim() != 1:
                raise ValueError(f"{self.spec} needs one label a sample; these have the shape {tuple(batch.y.shape)}")
            return mdav_within_classes(distances, batch.y.cpu().numpy(), k)
        return mdav(distances, k)

    def _sketched(self, flat: Tensor) -> Tensor:
        if self.sketch is None:
            return flat
        return self.sketch.down(flat.to(next(self.sketch.buffers()).dtype))


@torch.no_grad()
def unexplained(flat: Tensor, means: Tensor, share: Tensor) -> float:
    """The share of the variance that is lost: 0, every sample equals its row; 1, all rows are the same.

    Variance within groups is all variance less that between them: a pass over all samples less.
    """
    centre = flat.mean(0)
    total = torch.linalg.vector_norm(flat - centre).square()
    sizes = (share != 0).sum(1)
    between = (sizes * (means - centre).square().sum(1)).sum()
    return float(((total - between) / total.clamp_min(1e-30)).clamp(0, 1))
