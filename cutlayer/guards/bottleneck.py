"""The learned 1x1 baseline: a convolution narrows the channels, the server's widens them again."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, seeded
from .base import Guard, kept_width, need_maps, refuse_no_ratio


@dataclass(frozen=True, repr=False)
class Bottleneck1x1(Guard):
    """Learned 1x1 convolution to 1/ratio of the channels and back, trained by the task alone (baseline).

    c' = max(1, floor(C / ratio)), as in LightSplit's Table IX: with few channels the real ratio is below the asked.
    """

    capturable: ClassVar[bool] = True
    ratio: float
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(2, 32, log=True)}

    def __post_init__(self) -> None:
        refuse_no_ratio(self, self.ratio)

    @classmethod
    def usual(cls) -> "Bottleneck1x1":
        return cls(ratio=8)

    def out_shape(self, shape: Shape) -> Shape:
        need_maps(self, shape)
        kept_width(self, self.ratio, shape[0] * shape[1] * shape[2])
        return (max(1, int(shape[0] // self.ratio)), *shape[1:])

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        with seeded(private):
            return _Narrow(nn.Conv2d(shape[0], self.out_shape(shape)[0], 1))

    def lift(self, shape: Shape, public: int) -> nn.Module:
        with seeded(derive(public, "lift")):
            return nn.Conv2d(self.out_shape(shape)[0], shape[0], 1)


class _Narrow(GuardModule):
    def __init__(self, convolution: nn.Module):
        super().__init__()
        self.convolution = convolution

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        return Guarded(self.convolution(z))
