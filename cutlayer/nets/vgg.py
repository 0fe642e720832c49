"""VGG-16 (Simonyan & Zisserman 2015) in torchvision's layout."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import nn

from .base import Net, Shape, check_image
from .initial import initialised, small_linear

WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: a pool
AT_HOME, LAYERS = 19, 31  # layers of torchvision's `features`, with ReLUs and pools: in the head, in all


@dataclass(frozen=True, repr=False)
class VGG16(Net):
    """VGG-16, 134 M parameters; cut at 512x4x4 for 32x32 images, after the eighth convolution.

    Parameters have torchvision's names: the head is `features[:19]`, the tail `classifier.6`.
    """

    tail_name: ClassVar[str | None] = "classifier.6"

    def check(self, shape: Shape) -> None:
        check_image("VGG16", shape, smallest=32, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return initialised(nn.Sequential(OrderedDict(features=_features(shape[0], range(AT_HOME)))))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        hidden = [
            small_linear(512 * 7 * 7, 4096, std=0.01),
            nn.ReLU(),
            nn.Dropout(),
            small_linear(4096, 4096, std=0.01),
            nn.ReLU(),
            nn.Dropout(),
        ]
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            features=_features(shape[0], range(AT_HOME, LAYERS)),
            avgpool=nn.AdaptiveAvgPool2d(7),
            flatten=nn.Flatten(),
            classifier=nn.Sequential(*hidden),
        )
        return initialised(nn.Sequential(layers))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return small_linear(4096, classes, std=0.01)


def _features(channels: int, span: range) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for width in WIDTHS:
        convolution = partial(nn.Conv2d, channels, width, 3, padding=1)
        makers: list[Callable[[], nn.Module]] = [convolution, nn.ReLU] if width else [partial(nn.MaxPool2d, 2)]
        for make in makers:
            if number in span:
                layers[str(number)] = make()
            number += 1
        channels = width or channels
    return nn.Sequential(layers)
