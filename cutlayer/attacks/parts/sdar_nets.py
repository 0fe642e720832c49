"""The networks of SDAR: a simulated client, critics of features and images, and a way to tell them a label."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...nets.base import out_shape

EMBEDDING = 50  # entries of a label's embedding, as published
MOST_WEIGHTS = 2**24  # of one layer that changes the shape; above it, it gets a narrow waist
WAIST = 256


class Simulator(nn.Module):
    """A client of the attacker's own: a fresh head, and where messages have another shape, a layer that learns it.

    `shared` is the part of the cut that leaves (a Bypass keeps the other channels), `own` the shape to produce.
    """

    def __init__(self, head: nn.Module, image: Shape, shared: Shape, own: Shape):
        super().__init__()
        self.head, self.channels = head, shared[0]
        assert out_shape(head, image)[1:] == shared[1:]
        self.reshape = _reshape(shared, own)

    def forward(self, images: Tensor) -> Tensor:
        return self.reshape(self.head(images)[:, : self.channels])


def _reshape(shared: Shape, own: Shape) -> nn.Module:
    if shared == own:
        return nn.Identity()
    if len(shared) == len(own) == 3 and shared[1:] == own[1:]:
        return nn.Conv2d(shared[0], own[0], 1)
    width, kept = prod(shared), prod(own)
    layers = [nn.Linear(width, kept)]
    if width * kept > MOST_WEIGHTS:
        layers = [nn.Linear(width, WAIST), nn.Linear(WAIST, kept)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, own))


class Conditional(nn.Module):
    """A network that may be told a label: an embedding of it becomes one more channel, or entries of a vector.

    Labels come as shares of the classes, one row each: where samples share a message, so do their labels.
    `classes=0` tells it nothing.
    """

    def __init__(self, build: Callable[[Shape], nn.Module], shape: Shape, classes: int):
        super().__init__()
        self.maps = len(shape) == 3
        self.embed: nn.Module | None = None
        if classes:
            place = prod(shape[1:]) if self.maps else EMBEDDING
            self.embed = nn.Sequential(nn.Linear(classes, EMBEDDING, bias=False), nn.Linear(EMBEDDING, place))
            shape = (shape[0] + 1, *shape[1:]) if self.maps else (prod(shape) + EMBEDDING,)
        self.network = build(shape)

    def forward(self, z: Tensor, shares: Tensor) -> Tensor:
        if self.embed is None:
            return self.network(z)
        told = self.embed(shares)
        if self.maps:
            return self.network(torch.cat([z, told.reshape(len(z), 1, *z.shape[2:])], 1))
        return self.network(torch.cat([z.flatten(1), told], 1))


class Scale(nn.Module):
    """Means 0 and deviations 1, as the observed messages have them: by channel in maps, else by coordinate."""

    mean: Tensor
    std: Tensor

    def __init__(self, seen: Tensor):
        super().__init__()
        over = (0, 2, 3) if seen.dim() == 4 else (0,)
        self.register_buffer("mean", seen.mean(over, keepdim=True))
        # A channel that is dead in the victim is not dead in a fresh simulator: its tiny deviation would explode.
        least = 0.1 * seen.std(correction=0) + 1e-6
        self.register_buffer("std", seen.std(over, keepdim=True, correction=0).clamp_min(least))

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.std


def feature_critic(shape: Shape, width: int, blocks: int) -> nn.Module:
    """D₁: is this message the victim's? Published with width 64 and 3 blocks; for vectors we use linear layers."""
    if len(shape) != 3:
        hidden = 8 * width
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(prod(shape), hidden), _bend()]
        for _ in range(blocks):
            layers += [nn.Linear(hidden, hidden), _bend()]
        return nn.Sequential(*layers, nn.Dropout(0.4), nn.Linear(hidden, 1))
    if min(shape[1:]) > 8:  # levels 3 to 6 of a ResNet-20 on 32x32 images
        layers = [*_conv(shape[0], width, 1, norm=False), *_conv(width, 2 * width, 2)]
    else:  # levels 7 to 9
        layers = _conv(shape[0], 2 * width, 1, norm=False)
    layers += [layer for n in range(blocks) for layer in _conv((4 if n else 2) * width, 4 * width, 1)]
    layers += _conv((4 if blocks else 2) * width, 4 * width, 2, norm=False)
    return _judging(layers, shape)


def image_critic(shape: Shape, width: int) -> nn.Module:
    """D₂: is this an image of the attacker's, or the decoder's? Published with width 64."""
    layers = [
        *_conv(shape[0], width, 1, norm=False),
        *_conv(width, 2 * width, 2),
        *_conv(2 * width, 2 * width, 2),
        *_conv(2 * width, 4 * width, 2, norm=False),
    ]
    return _judging(layers, shape)


def published_decoder(cut: Shape, image: Shape) -> nn.Module:
    """The decoder of SDAR's release: doubled up to the size of the image, BatchNorm and ReLU behind every layer.

    It is made for ResNet-20 at levels 4 and 7. A cut that is no half or quarter of the image is scaled to it.
    """
    size, doublings = cut[1], 0
    while size * 2 ** (doublings + 1) <= image[1]:
        doublings += 1
    layers: list[nn.Module] = []
    channels = cut[0]
    for left in reversed(range(doublings)):
        out = 64 if left else 32
        layers += [nn.Upsample(scale_factor=2), *_normed(nn.Conv2d(channels, out, 3, padding=1))]
        for before in (out, 32) if left else ():
            layers += _normed(nn.ConvTranspose2d(before, 32, 3, 1, 1))
        channels = 32
    if size << doublings != image[1]:
        layers += [nn.Upsample(size=image[1:])]
    for out in (16, 16, 16):
        layers += _normed(nn.ConvTranspose2d(channels, out, 3, 1, 1))
        channels = out
    return nn.Sequential(*layers, nn.Conv2d(channels, image[0], 3, padding=1), nn.Sigmoid())


def _normed(layer: nn.Conv2d | nn.ConvTranspose2d) -> list[nn.Module]:
    return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]


def _conv(channels: int, out: int, stride: int, norm: bool = True) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, 3, stride, padding=1)
    return [convolution, nn.BatchNorm2d(out), _bend()] if norm else [convolution, _bend()]


def _judging(layers: list[nn.Module], shape: Shape) -> nn.Module:
    features = nn.Sequential(*layers, nn.Flatten())
    (width,) = out_shape(features, shape)
    # Where the channels lie last convolutions are faster, by far on a GPU.
    return nn.Sequential(features, nn.Dropout(0.4), nn.Linear(width, 1)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _bend() -> nn.Module:
    return nn.LeakyReLU(0.2)
