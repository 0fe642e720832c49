"""SignalNet: a small network for one-dimensional signals, such as sensor readings, ECGs or audio."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, normalise


@dataclass(frozen=True, repr=False)
class SignalNet(Net):
    """Three 1-D convolutions for (channels, length) signals; cut at 32 x length/2."""

    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 4:
            raise ValueError(
                f"SignalNet reads (channels, length) of at least 4 points, a single signal as (1, length); "
                f"got {tuple(shape)}. For rows of a table take MLP"
            )

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(*_convolution(shape[0], 32, 7, self.norm), nn.MaxPool1d(2))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(
            *_convolution(32, 64, 5, self.norm),
            nn.MaxPool1d(2),
            *_convolution(64, 128, 3, self.norm),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(128, classes)


def _convolution(channels: int, out: int, kernel: int, norm: str) -> list[nn.Module]:
    layer = nn.Conv1d(channels, out, kernel, padding=kernel // 2, bias=False)
    return [layer, normalise(norm, out, dims=1), nn.ReLU()]
