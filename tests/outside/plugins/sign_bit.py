"""One bit a number: the sign, times a scale that is learned."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer import Batch, Task
from cutlayer.guards import Guard, Guarded, GuardModule, Shape
from cutlayer.wire.codecs import Gridded


@dataclass(frozen=True, repr=False)
class SignBit(Guard):
    """Only the sign of each number leaves, times one learned scale."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.scale, int | float) or self.scale <= 0:
            raise ValueError(f"SignBit's scale is where learning starts, above 0; got {self.scale!r}")

    def out_shape(self, shape: Shape) -> Shape:
        return (torch.Size(shape).numel(),)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Sign(self.scale)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return nn.Unflatten(1, tuple(shape))


class _Sign(GuardModule):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        z = z.flatten(1) - z.flatten(1).mean(1, keepdim=True)
        codes, scale = (z > 0).to(torch.int32), self.scale.abs().detach().reshape(1)
        self.packed = Gridded(codes, -scale, 2 * scale, bits=1)
        soft = z.clamp(-1, 1) + (2 * codes - 1) * self.scale.abs()  # what gradients go through
        return Guarded(self.packed.value().reshape(z.shape) + (soft - soft.detach()))
