"""Numbers of two bytes instead of four."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.batch import Task
from ..core.compressor import Compressor
from ..core.guard import GuardModule, Shape
from ..core.search import Fixed, Search
from .base import Guard
from .parts.straight_through import StraightThrough


@dataclass(frozen=True, repr=False)
class BF16(Guard, Compressor):
    """Each number rounded to bfloat16: two bytes, eight significant bits, the range of float32.

    Straight through: gradients pass as if nothing had happened. Also for `down` and `back` of a plan. Each number
    is rounded by itself, so no outlier makes the others coarse, as it does on a grid.
    """

    capturable: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    search: ClassVar[Search] = Fixed("it has no setting")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return StraightThrough(self, private)

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        # Nothing is prepared: the wire sees for itself that the lower halves are empty.
        return tensor.detach().to(torch.bfloat16).to(tensor.dtype), None
