"""Gradients that pass as if nothing had happened to the rows."""

from typing import Any

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.guard import Guarded, GuardModule
from ...core.seeds import derive, generator


class StraightThrough(GuardModule):
    """What a squeeze makes of the rows leaves; its gradient is taken for that of the rows."""

    def __init__(self, compressor: Any, private: int):
        super().__init__()
        self.compressor, self.private = compressor, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        seen, self.packed = self.compressor.compress(z, generator(derive(self.private, batch.seed)))
        return Guarded(_Straight.apply(z, seen))


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, seen: Tensor) -> Tensor:
        return seen.clone() if seen is z else seen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None
