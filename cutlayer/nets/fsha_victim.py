"""The client of the feature-space hijacking attack (Pasquini et al. 2021), completed to a classifier."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise

BLOCKS = ((64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2))  # channels, out, stride


@dataclass(frozen=True, repr=False)
class FSHAClient(Net):
    """FSHA's client; cut at 64x16x16 (level=1), 128x8x8 (2 and 3) or 256x4x4 (4) for 32x32 images.

    The head is that of the attack's code. The attack never trains a task, so the code has no server network:
    body and tail are ours, the blocks that are left, one more of the last width, and a linear classifier.
    """

    level: Literal[1, 2, 3, 4] = 4
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("level", self.level, (1, 2, 3, 4))
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("FSHAClient", shape, smallest=2, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(
            nn.Conv2d(shape[0], 64, 3, padding=1),
            normalise(self.norm, 64, eps=1e-3, momentum=0.01),  # Keras' defaults, in torch's words
            nn.ReLU(),
            nn.MaxPool2d(2),
            *(PreBlock(*block) for block in BLOCKS[: self.level]),
        )

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        left = (PreBlock(*block) for block in (*BLOCKS[self.level :], (256, 256, 1)))
        return nn.Sequential(*left, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(256, classes)


class PreBlock(nn.Module):
    """ReLU before each of two convolutions, no normalisation; a strided 3x3 convolution as shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.relu = nn.ReLU()
        self.shortcut = nn.Conv2d(channels, out, 3, stride=stride, padding=1) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.relu(x))
        return self.shortcut(x) + self.conv2(self.relu(y))
