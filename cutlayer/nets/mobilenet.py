"""MobileNet (Howard et al. 2017) for small images: the victim of FORA."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image, normalise

# channels, stride
SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
AT_HOME = {1: 0, 2: 1, 3: 3, 4: 5}  # level: separable blocks in the head


@dataclass(frozen=True, repr=False)
class MobileNet(Net):
    """FORA's victim; cut at 32x16x16 (level=1), 64x16x16 (2), 128x8x8 (3) or 256x4x4 (4) for 32x32 images."""

    level: Literal[1, 2, 3, 4] = 2
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("level", self.level, tuple(AT_HOME))
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("MobileNet", shape, smallest=1, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        stem = nn.Conv2d(shape[0], 32, 3, stride=2, padding=1, bias=False)
        blocks = self._blocks(range(AT_HOME[self.level]))
        return nn.Sequential(stem, normalise(self.norm, 32), nn.ReLU(), *blocks)

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        blocks = self._blocks(range(AT_HOME[self.level], len(SEPARABLE)))
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(1024, classes)

    def _blocks(self, span: range) -> list[nn.Module]:
        widths = [32, *(out for out, _ in SEPARABLE)]
        return [_separable(widths[i], *SEPARABLE[i], self.norm) for i in span]


def _separable(channels: int, out: int, stride: int, norm: str) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
        normalise(norm, channels),
        nn.ReLU(),
        nn.Conv2d(channels, out, 1, bias=False),
        normalise(norm, out),
        nn.ReLU(),
    )
