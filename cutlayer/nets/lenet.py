"""A LeNet-5 variant for 28x28 digits: the small network of the VQ-VAE compression chapter."""

from dataclasses import dataclass

from torch import nn

from .base import Net, Shape, check_image


@dataclass(frozen=True, repr=False)
class LeNet(Net):
    """Two 3x3 convolutions and a hidden layer, for 28x28 digits; cut at 32x6x6."""

    def check(self, shape: Shape) -> None:
        check_image("LeNet", shape, smallest=8, published=(1, 28, 28))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        height, width = ((side // 2 - 2) // 2 for side in shape[1:])
        return nn.Sequential(nn.Flatten(), nn.Linear(32 * height * width, 128), nn.ReLU())

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(128, classes)
