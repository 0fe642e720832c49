"""The local network: what a client without a server computes between its head and its tail.

Built from the shapes of z and u alone: depthwise-separable convolutions (Howard et al. 2017) for maps and series,
linear layers for vectors. Made to be cheap: the client that runs it was meant to need no body.
"""

from functools import lru_cache
from math import ceil, prod

from torch import nn

from .base import Shape, count_macs, normalise

MOST_WIDTH = 4096
_CONVOLUTIONS = {2: nn.Conv1d, 3: nn.Conv2d}
_GRID = {2: 16, 3: 4}  # places along a side that a vector is made of, at most


def local_network(z: Shape, u: Shape, width: int) -> nn.Module:
    """From z to u by way of `width` channels, or numbers where z is a vector."""
    if len(z) == 1 and len(u) == 1:
        return nn.Sequential(nn.Linear(z[0], width), nn.ReLU(), nn.Linear(width, u[0]), nn.ReLU())
    if len(z) not in _CONVOLUTIONS or len(u) not in (1, len(z)):
        raise ValueError(
            f"a local network leads from maps, series or vectors to the like, or to vectors; not from {z} to {u}"
        )
    places, layer = len(z) - 1, _CONVOLUTIONS[len(z)]
    if len(u) == len(z):  # places come back, so none is given up on the way; pooling repeats them where u has more
        blocks = [*_separable(z[0], width, places, 1), *_separable(width, width, places, 1)]
        return nn.Sequential(*blocks, _pool(u[1:]), layer(width, u[0], 1), nn.ReLU())
    blocks = [*_separable(z[0], width, places, 2), *_separable(width, width, places, 2)]
    # One mean for each channel would forget where things were: far worse on digits than a coarse grid.
    grid = tuple(min(ceil(side / 4), _GRID[len(z)]) for side in z[1:])
    return nn.Sequential(*blocks, _pool(grid), nn.Flatten(), nn.Linear(width * prod(grid), u[0]), nn.ReLU())


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


def local_macs(z: Shape, u: Shape, width: int) -> int:
    return count_macs(local_network(z, u, width), z)


@lru_cache(maxsize=64)  # a dozen networks are built to find it, and every audit of a plan asks for the same
def widest(z: Shape, u: Shape, macs: int) -> int:
    """The largest width whose local network takes at most so many multiply-accumulates; 0: not even one channel."""
    low, high = 0, MOST_WIDTH + 1  # `low` fits, `high` does not, or is not asked for
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if local_macs(z, u, middle) <= macs else (low, middle)
    return low
