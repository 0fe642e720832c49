"""DeepLabv3 (Chen et al. 2017) on ResNet-50, in torchvision's layout."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from .base import Net, Shape, check_choice, check_image, normalise
from .initial import initialised
from .resnet import check_blocks, check_colours, imagenet_stem, scaled
from .resnet50 import BLOCKS, STAGES, Bottleneck

RATES = (12, 24, 36)  # of the pyramid, at an eighth of the side
WIDTH = 256
DILATED = {3: 2, 4: 4}  # stages that keep their side, and the rate that stands in for the strides left out


@dataclass(frozen=True, repr=False)
class DeepLabV3(Net):
    """DeepLabv3 on ResNet-50, one score a class and pixel; cut at 2048x65x65 for 513x513 images, after layer4.

    That is LFQ's cut ("after the 8th layer"); `blocks` cuts behind any of the 16 residual blocks of the backbone. The
    body is the rest of it and the pyramid, the tail the 1x1 classifier and the upsampling. Parameters have
    torchvision's names, and a file of ResNet-50 fills the backbone alone; the auxiliary classifier that torchvision
    trains beside is left out. `scale="imagenet"` puts inputs on the scale of its weights.
    """

    blocks: int = BLOCKS
    norm: Literal["batch", "group"] = "batch"
    scale: Literal["none", "imagenet"] = "none"

    tail_name: ClassVar[str | None] = "classifier.4"
    unread: ClassVar[tuple[str, ...]] = ("aux_classifier.",)
    backbone: ClassVar[str] = "backbone."

    def __post_init__(self) -> None:
        check_blocks(self.blocks, 1, BLOCKS)
        check_choice("norm", self.norm, ("batch", "group"))
        check_choice("scale", self.scale, ("none", "imagenet"))

    def check(self, shape: Shape) -> None:
        check_image("DeepLabV3", shape, smallest=1, published=(3, 513, 513))
        check_colours(self, self.scale, shape)

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = scaled(self.scale)
        stem = imagenet_stem(shape[0], self.norm)
        layers["backbone"] = nn.Sequential(stem | _stages(self.norm, range(self.blocks)))
        return initialised(nn.Sequential(layers))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if self.blocks < BLOCKS:
            layers["backbone"] = nn.Sequential(_stages(self.norm, range(self.blocks, BLOCKS)))
        layers["classifier"] = nn.Sequential(
            AtrousPyramid(STAGES[-1][0], self.norm), *_convolution(WIDTH, WIDTH, self.norm, kernel=3)
        )
        return initialised(nn.Sequential(layers))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return Classifier(WIDTH, classes, shape[1:])


def _stages(norm: str, span: range) -> "OrderedDict[str, nn.Module]":
    """The stages of ResNet-50, of which the last two keep their side: the first block of each still has the rate of
    the stage before, as in torchvision."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, number, rate = 64, 0, 1
    for stage, (out, count) in enumerate(STAGES, start=1):
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for place in range(count):
            if place == 1:
                rate = DILATED.get(stage, rate)
            stride = 2 if stage > 1 and place == 0 and stage not in DILATED else 1
            if number in span:
                blocks[str(place)] = Bottleneck(channels, out // 4, out, stride, norm, rate)
            channels, number = out, number + 1
        if blocks:
            layers[f"layer{stage}"] = nn.Sequential(blocks)
    return layers


class AtrousPyramid(nn.Module):
    """The same features at several rates and as one mean of the whole image, side by side, then mixed."""

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        rates = [nn.Sequential(*_convolution(channels, WIDTH, norm, kernel=3, rate=rate)) for rate in RATES]
        self.convs = nn.ModuleList(
            [nn.Sequential(*_convolution(channels, WIDTH, norm)), *rates, WholeImage(channels, norm)]
        )
        self.project = nn.Sequential(*_convolution(len(self.convs) * WIDTH, WIDTH, norm), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([branch(x) for branch in self.convs], dim=1))  # type: ignore[no-any-return]


class WholeImage(nn.Sequential):
    """The mean of the features, at every place."""

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), *_convolution(channels, WIDTH, norm))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).expand(-1, -1, *x.shape[2:])  # type: ignore[no-any-return]


class Classifier(nn.Conv2d):
    """A score a class at every place, and from there at every pixel of the image."""

    def __init__(self, channels: int, classes: int, size: Shape) -> None:
        super().__init__(channels, classes, 1)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(super().forward(x), size=self.size, mode="bilinear", align_corners=False)


def _convolution(channels: int, out: int, norm: str, *, kernel: int = 1, rate: int = 1) -> list[nn.Module]:
    padding = rate * (kernel // 2)
    return [
        nn.Conv2d(channels, out, kernel, padding=padding, dilation=rate, bias=False),
        normalise(norm, out),
        nn.ReLU(),
    ]
