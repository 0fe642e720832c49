"""A substitute for a client's head, built from the shape of the cut alone."""

from math import prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape

BLOCKS = ("vgg", "resnet", "dense")
SMALLEST = 7  # pixels a side at which a linear layer takes over, where the cut is no map


class Substitute(nn.Module):
    """Images to activations of the given shape. Nothing of the client's network is known but that shape.

    FORA's substitute: for every halving of the side two convolutions and a pool, the last stage as many channels as
    the cut, half as many the one before (`width` is the least). A cut that is no map gets a linear layer.
    """

    def __init__(self, image: Shape, cut: Shape, width: int, blocks: str = "vgg", signed: bool = False):
        super().__init__()
        maps = len(cut) == 3
        halvings = _halvings(image[1:], cut[1:] if maps else (SMALLEST, SMALLEST))
        stages = max(1, halvings)
        widest = cut[0] if maps else 2 * width
        layers: list[nn.Module] = []
        channels = image[0]
        for left in reversed(range(stages)):
            inner = max(width, widest >> left)
            out = cut[0] if maps and not left else inner
            # Behind a ReLU nothing is negative. Where something is, the last layer must be able to be.
            layers += [_BLOCKS[blocks](channels, inner, out, maps and signed and not left)]
            layers += [nn.MaxPool2d(2)] * (halvings > 0)
            channels = out
        if maps:
            layers += [_Fit(image[1:], cut[1:], halvings)]
        else:
            area = prod(side >> halvings for side in image[1:])
            layers += [nn.Flatten(), nn.Linear(channels * area, prod(cut)), *[nn.ReLU()] * (not signed)]
            layers += [nn.Unflatten(1, cut)]
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        # Around zero, as networks are initialised for.
        return self.layers(2 * images - 1)


def _halvings(image: Shape, cut: Shape) -> int:
    count = 0
    while all(side >> (count + 1) >= small for side, small in zip(image, cut, strict=True)):
        count += 1
    return count


class _Fit(nn.Module):
    """To the side of the cut: its middle, where unpadded convolutions may have taken a border off, else scaled."""

    def __init__(self, image: Shape, cut: Shape, halvings: int):
        super().__init__()
        self.cut = tuple(cut)
        spare = [(side >> halvings) - small for side, small in zip(image, cut, strict=True)]
        # The same rule as the reader's, who puts that border back.
        even = image[0] == image[1] and image[0] % 2**halvings == 0
        self.border = spare[0] // 2 if even and spare[0] == spare[1] and 0 <= spare[0] < cut[0] else None
        self.scale = nn.AdaptiveAvgPool2d(self.cut)

    def forward(self, z: Tensor) -> Tensor:
        if self.border is None:
            return self.scale(z)
        return z[:, :, self.border : self.border + self.cut[0], self.border : self.border + self.cut[1]]


def _conv(channels: int, out: int, bend: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers, *([nn.ReLU()] if bend else []))


def _vgg(channels: int, inner: int, out: int, signed: bool) -> nn.Module:
    return nn.Sequential(_conv(channels, inner), _conv(inner, out, not signed))


class _Residual(nn.Module):
    def __init__(self, channels: int, inner: int, out: int, signed: bool):
        super().__init__()
        self.branch = nn.Sequential(_conv(channels, inner), _conv(inner, out, bend=False))
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out))
        self.end = nn.Identity() if signed else nn.ReLU()

    def forward(self, z: Tensor) -> Tensor:
        return self.end(self.branch(z) + self.shortcut(z))


class _Dense(nn.Module):
    """Each layer reads all before it; a 1x1 convolution brings the channels down (DenseNet's transition)."""

    def __init__(self, channels: int, inner: int, out: int, signed: bool):
        super().__init__()
        grown = max(4, inner // 2)
        self.first, self.second = _conv(channels, grown), _conv(channels + grown, grown)
        self.end = nn.Sequential(nn.Conv2d(channels + 2 * grown, out, 1, bias=False), nn.BatchNorm2d(out))
        self.bend = nn.Identity() if signed else nn.ReLU()

    def forward(self, z: Tensor) -> Tensor:
        z = torch.cat([z, self.first(z)], 1)
        z = torch.cat([z, self.second(z)], 1)
        return self.bend(self.end(z))


_BLOCKS = {"vgg": _vgg, "resnet": _Residual, "dense": _Dense}
