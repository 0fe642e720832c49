"""SimpleCNN: the small network of the LightSplit paper for 28x28 images."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image, normalise


@dataclass(frozen=True, repr=False)
class SimpleCNN(Net):
    """Two 5x5 convolutions and a hidden layer, for 28x28 images; cut at 20x12x12.

    `depth=1` is the paper's L1H, `depth=2` its L2H. L2H has one more block, which the network of L1H lacks:
    only then are the bodies of both equal, as Table II prints them.
    """

    depth: Literal[1, 2] = 1
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("depth", self.depth, (1, 2))
        check_choice("norm", self.norm, ("batch", "group"))
        if self.depth == 1 and self.norm != "batch":
            raise ValueError(f"SimpleCNN(depth=1) has no layer for norm={self.norm!r}; leave it out or take depth=2")

    def check(self, shape: Shape) -> None:
        check_image("SimpleCNN", shape, smallest=16, published=(1, 28, 28))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
        if self.depth == 2:
            layers += [nn.Conv2d(20, 20, 3, padding=1, bias=False), normalise(self.norm, 20), nn.ReLU()]
        return nn.Sequential(*layers)

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])  # twice: 5x5 convolution, 2x2 pool
        return nn.Sequential(
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * height * width, 512),
            nn.ReLU(),
        )

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(512, classes)
