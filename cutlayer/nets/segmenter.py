"""A small segmentation network after DeepLabv3 (Chen et al. 2017): atrous convolutions at several rates."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise

RATES = (2, 4, 8)  # a quarter of the side is left when the pyramid starts; DeepLab has an eighth of larger images


@dataclass(frozen=True, repr=False)
class Segmenter(Net):
    """A small DeepLab, one score a class and pixel; cut at 32x32x32 for 64x64 images.

    Labels are (N, height, width) and scores (N, classes, height, width), at the size of the input. The tail is the
    1x1 classifier and the upsampling, so that what comes back from the server is a quarter of the side.
    """

    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("Segmenter", shape, smallest=1, published=(3, 64, 64))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(*_convolution(shape[0], 32, self.norm, stride=2), *_convolution(32, 32, self.norm))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(
            *_convolution(32, 64, self.norm, stride=2),
            *_convolution(64, 128, self.norm),
            *_convolution(128, 128, self.norm, rate=2),
            AtrousPyramid(128, 64, self.norm),
        )

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        height, width = shape[1:]
        upsample = nn.Upsample(size=(height, width), mode="bilinear", align_corners=False)
        return nn.Sequential(nn.Conv2d(64, classes, 1), upsample)


class AtrousPyramid(nn.Module):
    """The same features at several rates and as one mean of the whole image, side by side, then mixed."""

    def __init__(self, channels: int, out: int, norm: str) -> None:
        super().__init__()
        plain = nn.Sequential(*_convolution(channels, out, norm, kernel=1))
        self.branches = nn.ModuleList(
            [plain, *(nn.Sequential(*_convolution(channels, out, norm, rate=rate)) for rate in RATES)]
        )
        # A single position is left here: a batch of one, or a small group, would have nothing to normalise over.
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, out, 1), nn.ReLU())
        self.mix = nn.Sequential(*_convolution(out * (len(RATES) + 2), out, norm, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        image = self.image(x).expand(-1, -1, *x.shape[2:])
        return self.mix(torch.cat([*(branch(x) for branch in self.branches), image], dim=1))


def _convolution(
    channels: int, out: int, norm: str, *, kernel: int = 3, stride: int = 1, rate: int = 1
) -> list[nn.Module]:
    padding = rate * (kernel // 2)
    layer = nn.Conv2d(channels, out, kernel, stride, padding, dilation=rate, bias=False)
    return [layer, normalise(norm, out), nn.ReLU()]
