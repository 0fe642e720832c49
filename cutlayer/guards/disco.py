"""DISCO: each sample leaves with the channels that help a reader most set to zero."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import seeded
from .base import Guard, Support, need_maps
from .parts.adversary import Opponent, check_opponent, opponent

TEMPERATURE = 1 / 30  # of the soft mask that the scores learn by


@dataclass(frozen=True, repr=False)
class Disco(Guard):
    """Channels pruned sample by sample: a pruner keeps what the task needs and a reader trained at home does not.

    DISCO (Singh et al., 2021). The pruner scores the channels of one sample; the share `ratio` with the lowest scores
    becomes 0. Three disjoint updates in one backward pass: the head follows the server's gradient alone, the pruner
    (1-alpha) · task - alpha · reader's loss, the reader its loss. The reader guesses the input, or `attribute`.

    `patches` = p prunes each channel in each field of a p x p grid on its own: the maps at the cut are divided, so
    that the head stays as it is and nothing has to be trained anew. The paper's spatial decoupler cuts up the *input*
    and makes its fields the channels: that is a network's business, `ResNet18(stem="fields")`. The paper scores with
    the remaining layers of a ResNet-18, as large as the server's network; here two convolutions do, for a client that
    split its network because it is small.
    """

    ratio: float = 0.6
    patches: int | None = None
    attribute: str | None = None
    alpha: float = 0.5
    width: int = 32
    reads_samples: ClassVar[bool] = True
    makes_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(0.1, 0.95), "alpha": Between(0.1, 0.9)}

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, int | float) or not 0 <= self.ratio < 1:
            raise ValueError(f"Disco's ratio is the share of channels pruned, from 0 to below 1; got {self.ratio!r}")
        if not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"Disco's alpha is the reader's share of the pruner's loss, 0 to 1; got {self.alpha!r}")
        if self.patches is not None and (type(self.patches) is not int or self.patches < 1):
            raise ValueError(f"Disco's patches are the fields a side, from 1 up, or None; got {self.patches!r}")
        check_opponent(self, self.attribute, self.width)

    @property
    def attributes(self) -> tuple[str, ...]:
        return () if self.attribute is None else (self.attribute,)

    def out_shape(self, shape: Shape) -> Shape:
        need_maps(self, shape)
        if self._side() > min(shape[1:]):
            raise ValueError(f"{self}: maps of {shape[1]}x{shape[2]} have at most {min(shape[1:])} patches a side")
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        self.out_shape(shape)
        with seeded(private):
            reader = opponent(self, shape, task, self.attribute, self.width)
            return _Prune(self, _Scores(shape, self._side(), self.width), reader)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return Support()

    def public_part(self) -> Guard:
        # The zeros show the ratio; what they are to hide is nobody's business.
        return replace(self, attribute=None, alpha=Disco.alpha, width=Disco.width)

    def _side(self) -> int:
        return self.patches or 1


class _Scores(nn.Module):
    """One score for each channel, or for each field of each channel."""

    rows: Tensor
    columns: Tensor

    def __init__(self, shape: Shape, side: int, width: int):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(shape[0], width, 3, padding=1), nn.ReLU())
        self.judge = nn.Conv2d(width, shape[0], 1)
        self.register_buffer("rows", _fields(shape[1], side), persistent=False)
        self.register_buffer("columns", _fields(shape[2], side), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        # The mean over each field. A product, because torch's adaptive pooling is not reproducible on a GPU.
        weight = self.rows.sum(1)[:, None] * self.columns.sum(1)
        scores: Tensor = self.judge(self.rows @ self.look(z) @ self.columns.T / weight)
        return scores

    def spread(self, fields: Tensor) -> Tensor:
        """Every place gets the value of its field."""
        return self.rows.T @ fields @ self.columns


class _Prune(GuardModule):
    def __init__(self, spec: Disco, scores: _Scores, reader: Opponent):
        super().__init__()
        self.ratio, self.alpha = spec.ratio, spec.alpha
        self.scores, self.reader = scores, reader

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        still = z.detach()  # the head must not learn to please the pruner
        scores = self.scores(still)
        mask = self.scores.spread(kept(scores, self.ratio))
        # Not a product: that leaves -0.0 where a number below 0 was dropped, and the wire would send it.
        pruned = torch.where(mask.bool(), z, 0.0)
        if not (self.training and torch.is_grad_enabled()):
            return Guarded(pruned)
        soft = self.scores.spread(soften(scores, self.ratio))
        # Its value is 0: dL/dM = message 4 · z reaches the scores through it, and the head through `mask · z` alone.
        slope = soft - soft.detach()
        loss = self.reader((mask + slope) * still, batch, self.alpha)
        self.notes = self.reader.notes
        return Guarded(pruned + (1 - self.alpha) * slope * still, {"Disco": loss})


def kept(scores: Tensor, ratio: float) -> Tensor:
    """1 for the units that stay, 0 for the int(units · ratio) with the lowest scores of each sample."""
    rows = scores.detach().flatten(1)
    order = rows.argsort(dim=1, stable=True)  # equal scores: the later unit stays, and the number is always exact
    mask = torch.ones_like(rows).scatter(1, order[:, : int(rows.shape[1] * ratio)], 0)
    return mask.reshape(scores.shape)


def soften(scores: Tensor, ratio: float) -> Tensor:
    """sigmoid((s - τ) / T), τ the lowest score that stays: the slope that a hard mask has not."""
    rows = scores.flatten(1)
    threshold = rows.detach().sort(dim=1).values[:, int(rows.shape[1] * ratio)]
    return ((rows - threshold[:, None]) / TEMPERATURE).sigmoid().reshape(scores.shape)


def _fields(side: int, count: int) -> Tensor:
    """count x side: which places belong to which of `count` fields as even as can be."""
    place = torch.arange(side) * count // side
    return (place == torch.arange(count)[:, None]).to(torch.get_default_dtype())
