"""NoPeek: make what leaves statistically independent of the input, as far as distance correlation can tell."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from .base import Guard, Guarded, GuardModule, Shape
from .parts.adversary import scale_gradient

LEAST = 4  # below that the unbiased figure does not exist, and two rows always correlate perfectly


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

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"NoPeek's alpha shares the loss between dCor and task, from 0 to 1; got {self.alpha!r}")

    @property
    def least_batch(self) -> int:
        return LEAST

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


def distance_correlation(x: Tensor, z: Tensor, unbiased: bool = False, squared: bool = False) -> Tensor:
    """dCor of paired rows, 0 to 1 (Székely et al., 2007): the V-statistic, as losses use it.

    For few rows of many numbers it is far from 0 even if x and z are independent. `unbiased` gives Székely and
    Rizzo's (2013) corrected estimate of dCor² instead: 0 on average under independence, so at times below 0.
    """
    if len(x) != len(z):
        raise ValueError(f"distance correlation pairs rows: give as many of x as of z; got {len(x)} and {len(z)}")
    a, b = _distances(x, z.dtype, squared), _distances(z, z.dtype, squared)
    if unbiased:
        return _ratio(*(_u_centred(distances) for distances in (a, b)))
    # The root has no slope at 0, so it stops just before.
    return _ratio(*(_v_centred(distances) for distances in (a, b))).clamp_min(1e-12).sqrt()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """⟨A, B⟩ / (‖A‖ ‖B‖). The counts in dCov and dVar cancel; where nothing varies it is 0."""
    size = (a.square().sum() * b.square().sum()).clamp_min(torch.finfo(a.dtype).tiny).sqrt()
    return (a * b).sum() / size


def _v_centred(distances: Tensor) -> Tensor:
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def _u_centred(distances: Tensor) -> Tensor:
    count = len(distances)
    if count < LEAST:
        raise ValueError(f"the unbiased estimate needs at least {LEAST} rows; got {count}")
    rows = distances.sum(1) / (count - 2)
    centred = distances - rows - rows[:, None] + distances.sum() / ((count - 1) * (count - 2))
    return centred.masked_fill(torch.eye(count, dtype=torch.bool, device=distances.device), 0)


def _distances(rows: Tensor, dtype: torch.dtype, squared: bool) -> Tensor:
    if not rows.is_floating_point() and rows.dtype != torch.uint8:
        return _between_ids(rows, dtype, squared)
    rows = rows.to(dtype).flatten(1)
    rows = rows - rows.mean(0)  # distances stay, and less is lost in the differences below
    lengths = rows.square().sum(1)
    square = (lengths[:, None] + lengths - 2 * rows @ rows.T).clamp_min(0)
    # The root has no slope at 0: rows that coincide must not push each other by infinity.
    between = square if squared else (square + 1e-12).sqrt()
    return between.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), 0)


def _between_ids(rows: Tensor, dtype: torch.dtype, squared: bool) -> Tensor:
    """Word numbers are names, not sizes: the distance of their one-hot codes, √(2 · places that differ)."""
    rows = rows.flatten(1)
    square = 2 * torch.stack([(rows != row).sum(1) for row in rows]).to(dtype)
    return square if squared else square.sqrt()
