"""The local network: what a client without a server computes between its head and its tail.

Built from the shapes of z and u alone: depthwise-separable convolutions (Howard et al. 2017) for maps and series,
linear layers for vectors and for the mean of tokens. Made to be cheap: the client that runs it was meant to need no
body.
"""

from functools import lru_cache
from math import ceil, prod

import torch
from torch import Tensor, nn

from .base import Shape, count_macs, normalise

MOST_WIDTH = 4096
_CONVOLUTIONS = {2: nn.Conv1d, 3: nn.Conv2d}
_GRID = {2: 16, 3: 4}  # places along a side that a vector is made of, at most


class Local(nn.Sequential):
    """Layers that read z alone, whatever is beside it."""

    def forward(self, input: Tensor, **beside: Tensor) -> Tensor:
        found: Tensor = super().forward(input)
        return found


class OfTokens(nn.Module):
    """The mean of the tokens that are words through linear layers; where u has places, each gets the same."""

    def __init__(self, z: Shape, u: Shape, width: int):
        super().__init__()
        self.layers, self.places = _linear(z[1], u[-1], width), u[:-1]

    def forward(self, z: Tensor, mask: Tensor | None = None, **others: Tensor) -> Tensor:
        words = torch.ones_like(z[:, :, 0]) if mask is None else mask.to(z)
        mean = (z * words[:, :, None]).sum(1) / words.sum(1, keepdim=True).clamp_min(1)
        found: Tensor = self.layers(mean)
        return found[:, None].expand(-1, *self.places, -1) if self.places else found


def local_network(z: Shape, u: Shape, width: int, tokens: bool = False) -> nn.Module:
    """From z to u by way of `width` channels, or numbers where z is a vector. `tokens`: z is (tokens, features)."""
    if tokens and len(u) <= 2:
        return OfTokens(z, u, width)
    if len(z) == 1 and len(u) == 1:
        return Local(*_linear(z[0], u[0], width))
    if len(z) not in _CONVOLUTIONS or len(u) not in (1, len(z)):
        raise ValueError(
            f"a local network leads from maps, series or vectors to the like, or to vectors; not from {z} to {u}"
        )
    places, layer = len(z) - 1, _CONVOLUTIONS[len(z)]
    if len(u) == len(z):  # places come back, so none is given up on the way; pooling repeats them where u has more
        blocks = [*_separable(z[0], width, places, 1), *_separable(width, width, places, 1)]
        return Local(*blocks, _pool(u[1:]), layer(width, u[0], 1), nn.ReLU())
    blocks = [*_separable(z[0], width, places, 2), *_separable(width, width, places, 2)]
    # One mean for each channel would forget where things were: far worse on digits than a coarse grid.
    grid = tuple(min(ceil(side / 4), _GRID[len(z)]) for side in z[1:])
    return Local(*blocks, _pool(grid), nn.Flatten(), nn.Linear(width * prod(grid), u[0]), nn.ReLU())


def _linear(features: int, out: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, out), nn.ReLU())


def _pool(places: Shape) -> nn.Module:
    return nn.AdaptiveAvgPool2d(places) if len(places) > 1 else nn.AdaptiveAvgPool1d(places[0])


def _separable(channels: int, out: int, places: int, stride: int) -> list[nn.Module]:
    """Each channel by itself, then all channels of a place."""
    convolution = _CONVOLUTIONS[places + 1]
    return [
        convolution(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
        normalise("batch", channels, dims=places),
        nn.ReLU(),
        convolution(channels, out, 1, bias=False),
        normalise("batch", out, dims=places),
        nn.ReLU(),
    ]


def local_macs(z: Shape, u: Shape, width: int, tokens: bool = False) -> int:
    return count_macs(local_network(z, u, width, tokens), z)


@lru_cache(maxsize=64)  # a dozen networks are built to find it, and every audit of a plan asks for the same
def widest(z: Shape, u: Shape, macs: int, tokens: bool = False) -> int:
    """The largest width whose local network takes at most so many multiply-accumulates; 0: not even one channel."""
    low, high = 0, MOST_WIDTH + 1  # `low` fits, `high` does not, or is not asked for
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if local_macs(z, u, middle, tokens) <= macs else (low, middle)
    return low
