"""Within-class compaction: pull what is sent towards its class mean, so that it says less about the sample."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from .base import Guard


@dataclass(frozen=True, repr=False)
class WCC(Guard):
    """Within-class compaction: a penalty on the spread of what is sent around its class mean. Client only."""

    weight: float
    client_only: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True
    reads_classes: ClassVar[bool] = True
    search: ClassVar[Search] = {"weight": Between(0.0001, 0.3, log=True)}

    @classmethod
    def usual(cls) -> "WCC":
        return cls(weight=0.01)

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 <= self.weight < float("inf"):
            raise ValueError(f"WCC's weight is a number from 0 up (useful: 0.01 to 0.1); got {self.weight!r}")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Compact(self.weight)


class _Compact(GuardModule):
    def __init__(self, weight: float):
        super().__init__()
        self.weight = weight

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if not self.training:
            return Guarded(z)
        return Guarded(z, {"WCC": self.weight * within_class_scatter(z, batch.y)})


def within_class_scatter(seen: Tensor, y: Tensor) -> Tensor:
    """Σ over classes in the batch of the mean squared distance to the class mean (LightSplit, Eq. 10).

    A sum over classes as printed: its scale grows with the number of classes present. A class with one sample
    adds nothing.
    """
    rows = seen.flatten(1)
    _, index = torch.unique(y, return_inverse=True)
    member = one_hot(index).to(rows.dtype)
    share = member / member.sum(0)  # 1/|S_c| for members of c, 0 elsewhere
    means = share.T @ rows
    return (share.sum(1) * (rows - means[index]).square().sum(1)).sum()
