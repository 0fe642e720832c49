"""Only the largest activations leave."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.compressor import Compressor
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator
from .base import Guard


@dataclass(frozen=True, repr=False)
class TopK(Guard, Compressor):
    """The `share` of each row that is largest in size; the rest are zeros, which the wire leaves out (Top-S).

    The gradient exists on what was sent alone, both ways. Where the large activations stand is itself a picture of
    what matters in the input.
    """

    capturable: ClassVar[bool] = True
    share: float = 0.05
    only_compresses: ClassVar[bool] = True
    makes_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"share": Between(0.002, 0.5, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ValueError(f"{type(self).__name__}'s share of a row is in (0, 1]; got {self.share!r}")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        self.count(shape)
        return _Largest(self, private)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return OnSupport()

    def count(self, shape: Shape) -> int:
        """How many values of a row leave."""
        return max(1, round(self.share * prod(shape)))

    def mask(self, rows: Tensor, draw: torch.Generator | None = None) -> Tensor:
        """True where a value leaves."""
        return _largest(rows, self.count(tuple(rows.shape[1:])))

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        if tensor.dim() < 2:
            return tensor, None
        rows = tensor.flatten(1)
        return torch.where(self.mask(rows, draw), rows, 0.0).reshape(tensor.shape), None


@dataclass(frozen=True, repr=False)
class RandTopK(TopK):
    """TopK in which a part `alpha` of the places goes to other values: drawn at each step, and not in service.

    Small activations get a gradient now and then. At inference the largest leave, and an audit reads them, too.
    """

    alpha: float = 0.1
    rests_in_service: ClassVar[bool] = True
    search: ClassVar[Search] = {"share": Between(0.002, 0.5, log=True), "alpha": Between(0.01, 0.5, log=True)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"RandTopK's alpha is a share in [0, 1]; got {self.alpha!r}")

    @property
    def draws_anew(self) -> bool:
        return self.alpha > 0

    def mask(self, rows: Tensor, draw: torch.Generator | None = None) -> Tensor:
        top = super().mask(rows)
        count = self.count(tuple(rows.shape[1:]))
        dice = torch.rand(rows.shape, generator=draw).to(rows)
        # Each of the places goes to the rest with probability alpha (RandTopk: Zheng et al. 2023).
        coins = torch.rand(len(rows), count, generator=draw).to(rows)
        others = torch.minimum((coins < self.alpha).sum(1), (~top).sum(1))
        kept = _ranks(torch.where(top, dice, torch.full_like(dice, 2.0))) < (count - others)[:, None]
        drawn = _ranks(torch.where(top, torch.full_like(dice, 2.0), dice)) < others[:, None]
        return kept | drawn


def _largest(rows: Tensor, count: int) -> Tensor:
    at = rows.abs().topk(count, dim=1).indices
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, at, True)


def _ranks(keys: Tensor) -> Tensor:
    """The place of every element of a row, from the smallest up."""
    order = keys.argsort(1)
    return torch.empty_like(order).scatter_(
        1, order, torch.arange(keys.shape[1], device=keys.device).expand_as(order)
    )


class _Largest(GuardModule):
    def __init__(self, spec: TopK, private: int):
        super().__init__()
        self.spec, self.private = spec, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        rows = z.flatten(1)
        draw = generator(derive(self.private, batch.seed))
        mask = self.spec.mask(rows.detach(), draw) if self.training else TopK.mask(self.spec, rows.detach())
        return Guarded(torch.where(mask, rows, 0.0).reshape(z.shape))  # a product would give -0.0, which is no zero


class OnSupport(nn.Module):
    """Lets rows through as they are, and gradients only where something came."""

    def forward(self, seen: Tensor) -> Tensor:
        return torch.where(seen.detach() != 0, seen, 0.0)
