"""MnistNet: the victim of the UnSplit paper."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image


@dataclass(frozen=True, repr=False)
class MnistNet(Net):
    """UnSplit's LeNet for 28x28 digits; cut at 8x12x12 (cut=2) or 16x8x8 (cut=4).

    `cut` is the paper's layer index, counted from 0 over conv, ReLU, pool, conv, ReLU, pool, ...; the head
    ends after that layer. The tail is the last linear layer, as in the paper's label inference.
    """

    cut: Literal[2, 4] = 2

    def __post_init__(self) -> None:
        check_choice("cut", self.cut, (2, 4))

    def check(self, shape: Shape) -> None:
        check_image("MnistNet", shape, smallest=16, published=(1, 28, 28))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 8, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, *(_second_conv() if self.cut == 4 else []))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])  # twice: 5x5 convolution, 2x2 pool
        return nn.Sequential(
            *(_second_conv() if self.cut == 2 else []),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * height * width, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(84, classes)


def _second_conv() -> list[nn.Module]:
    return [nn.Conv2d(8, 16, 5), nn.ReLU()]
