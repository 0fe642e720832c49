"""MicronNet (Wong et al. 2018) for traffic signs, in the LightSplit paper's form."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image, normalise


@dataclass(frozen=True, repr=False)
class MicronNet(Net):
    """LightSplit's MicronNet for 32x32 traffic signs (GTSRB); cut at 29x14x14.

    `depth=1` is the paper's L1H, `depth=2` its L2H. L2H has one more block, which the network of L1H lacks:
    only then are the bodies of both equal, as Table II prints them. Counts do not fix where ReLU and pools stand;
    these places give the paper's shapes.
    """

    depth: Literal[1, 2] = 1
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("depth", self.depth, (1, 2))
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("MicronNet", shape, smallest=20, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers: list[nn.Module] = [normalise(self.norm, shape[0]), nn.Conv2d(shape[0], 1, 1)]
        layers += [normalise(self.norm, 1), nn.ReLU(), nn.Conv2d(1, 29, 5), normalise(self.norm, 29), nn.ReLU()]
        layers += [nn.MaxPool2d(3, stride=2, ceil_mode=True)]
        if self.depth == 2:
            layers += [nn.Conv2d(29, 29, 3, padding=1, bias=False), normalise(self.norm, 29), nn.ReLU()]
        return nn.Sequential(*layers)

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        height, width = (_pooled(_pooled(side - 4) - 2) - 2 for side in shape[1:])
        return nn.Sequential(
            nn.Conv2d(29, 59, 3),
            normalise(self.norm, 59),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Conv2d(59, 74, 3),
            normalise(self.norm, 74),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(74 * height * width, 300),
            normalise(self.norm, 300, dims=0),
            nn.ReLU(),
        )

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(300, classes)


def _pooled(side: int) -> int:
    return (side - 2) // 2 + 1  # windows of 3 at every second pixel; the last one may stick out
