"""NoPeek: make what leaves statistically independent of the input, as far as distance correlation can tell."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from .base import Guard
from .parts.adversary import scale_gradient
from .parts.distance_correlation import LEAST, distance_correlation


@dataclass(frozen=True, repr=False)
class NoPeek(Guard):
    """Distance correlation between input and what leaves, as a penalty on the head. Client only.

    FORA, Eq. 8: L = α dCor(x, z) + (1-α) task. The head gets both terms; server and tail keep their task gradient
    unscaled, for which (1-α) would only be another learning rate. `squared` measures with squared distances as the
    public NoPeek code does, and is then no distance correlation: it sees linear dependence alone.
    """

    alpha: float = 0.5
    squared: bool = False
    client_only: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True
    search: ClassVar[Search] = {"alpha": Between(0.05, 0.95)}

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"NoPeek's alpha shares the loss between dCor and task, from 0 to 1; got {self.alpha!r}")

    @property
    def least_batch(self) -> int:
        return LEAST

    @property
    def least_in_service(self) -> int:
        return 1  # what is measured over a batch is a penalty

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Decorrelate(self.alpha, self.squared)


class _Decorrelate(GuardModule):
    def __init__(self, alpha: float, squared: bool):
        super().__init__()
        self.alpha, self.squared = alpha, squared

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if not (self.training and torch.is_grad_enabled()):
            return Guarded(z)
        correlation = distance_correlation(batch.x, z, squared=self.squared)
        # What is trained on is far above 0 for independent data, too; what is shown is not.
        with torch.no_grad():
            honest = {"dcor": float(distance_correlation(batch.x, z, unbiased=True))} if len(z) >= LEAST else {}
        self.notes = honest
        return Guarded(scale_gradient(z, 1 - self.alpha), {"NoPeek": self.alpha * correlation})
