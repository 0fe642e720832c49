"""MobileNetV3-Large (Howard et al. 2019) in torchvision's layout."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise
from .initial import initialised, small_linear

AT_HOME = 7  # inverted residual blocks in the head


class Setting(NamedTuple):
    """One inverted residual block. `squeeze`: the width inside squeeze-and-excitation, 0 without it."""

    kernel: int
    width: int
    out: int
    squeeze: int
    hard: bool  # Hardswish, or ReLU
    stride: int


# The paper's Table 1. Squeezed widths are a quarter, rounded to a multiple of 8 that loses less than a tenth.
BLOCKS = (
    Setting(3, 16, 16, 0, False, 1),
    Setting(3, 64, 24, 0, False, 2),
    Setting(3, 72, 24, 0, False, 1),
    Setting(5, 72, 40, 24, False, 2),
    Setting(5, 120, 40, 32, False, 1),
    Setting(5, 120, 40, 32, False, 1),
    Setting(3, 240, 80, 0, True, 2),
    Setting(3, 200, 80, 0, True, 1),
    Setting(3, 184, 80, 0, True, 1),
    Setting(3, 184, 80, 0, True, 1),
    Setting(3, 480, 112, 120, True, 1),
    Setting(3, 672, 112, 168, True, 1),
    Setting(5, 672, 160, 168, True, 2),
    Setting(5, 960, 160, 240, True, 1),
    Setting(5, 960, 160, 240, True, 1),
)


@dataclass(frozen=True, repr=False)
class MobileNetV3Large(Net):
    """MobileNetV3-Large; cut at 80x14x12 for 218x178 images (CelebA), after seven blocks.

    Parameters have torchvision's names: the head is `features[:8]`, the tail `classifier.3`.
    """

    norm: Literal["batch", "group"] = "batch"

    tail_name: ClassVar[str | None] = "classifier.3"

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("MobileNetV3Large", shape, smallest=1, published=(3, 218, 178))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        stem = _convolution(shape[0], 16, 3, self.norm, stride=2, activation=nn.Hardswish)
        layers = OrderedDict([("0", stem), *self._blocks(range(AT_HOME))])
        return initialised(nn.Sequential(OrderedDict(features=nn.Sequential(layers))))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        last = _convolution(160, 960, 1, self.norm, activation=nn.Hardswish)
        layers = OrderedDict([*self._blocks(range(AT_HOME, len(BLOCKS))), (str(len(BLOCKS) + 1), last)])
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            features=nn.Sequential(layers),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Sequential(small_linear(960, 1280, std=0.01), nn.Hardswish(), nn.Dropout(0.2)),
        )
        return initialised(nn.Sequential(parts))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return small_linear(1280, classes, std=0.01)

    def _blocks(self, span: range) -> list[tuple[str, nn.Module]]:
        widths = [16, *(block.out for block in BLOCKS)]
        return [(str(i + 1), InvertedResidual(widths[i], BLOCKS[i], self.norm)) for i in span]


class InvertedResidual(nn.Module):
    """Widen by 1x1, depthwise, squeeze-and-excitation, narrow by 1x1; a shortcut where the shape stays."""

    def __init__(self, channels: int, block: Setting, norm: str) -> None:
        super().__init__()
        activation: Callable[[], nn.Module] = nn.Hardswish if block.hard else nn.ReLU
        layers: list[nn.Module] = []
        if block.width != channels:
            layers.append(_convolution(channels, block.width, 1, norm, activation=activation))
        layers.append(
            _convolution(
                block.width, block.width, block.kernel, norm, stride=block.stride, groups=block.width,
                activation=activation,
            )
        )  # fmt: skip
        if block.squeeze:
            layers.append(SqueezeExcitation(block.width, block.squeeze))
        layers.append(_convolution(block.width, block.out, 1, norm))
        self.block = nn.Sequential(*layers)
        self.shortcut = block.stride == 1 and channels == block.out

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + x if self.shortcut else self.block(x)


class SqueezeExcitation(nn.Module):
    """Each channel times a factor that the means of all channels decide."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.activation = nn.Conv2d(channels, squeezed, 1), nn.ReLU()
        self.fc2, self.scale_activation = nn.Conv2d(squeezed, channels, 1), nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))


def _convolution(
    channels: int, out: int, kernel: int, norm: str, *, stride: int = 1, groups: int = 1,
    activation: Callable[[], nn.Module] | None = None,
) -> nn.Module:  # fmt: skip
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [convolution, normalise(norm, out, eps=1e-3, momentum=0.01)]
    return nn.Sequential(*layers, *([activation()] if activation else []))
