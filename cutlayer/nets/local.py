"""The local network: what a client without a server computes between its head and its tail.

Built from the shapes of z and u alone: depthwise-separable convolutions (Howard et al. 2017) for maps and series,
linear layers for vectors. Made to be cheap: the client that runs it was meant to need no body.
"""

from torch import nn

from .base import Shape, count_macs, normalise

MOST_WIDTH = 4096
_CONVOLUTIONS = {2: nn.Conv1d, 3: nn.Conv2d}
_POOLS = {2: nn.AdaptiveAvgPool1d, 3: nn.AdaptiveAvgPool2d}


def local_network(z: Shape, u: Shape, width: int) -> nn.Module:
    """From z to u by way of `width` channels, or numbers where z is a vector."""
    if len(z) == 1 and len(u) == 1:
        return nn.Sequential(nn.Linear(z[0], width), nn.ReLU(), nn.Linear(width, u[0]), nn.ReLU())
    if len(z) not in _CONVOLUTIONS or len(u) not in (1, len(z)):
        raise ValueError(
            f"a local network leads from maps, series or vectors to the like, or to vectors; not from {z} to {u}"
        )
    places = len(z) - 1
    pooled = (1,) * places if len(u) == 1 else u[1:]
    # A half of every side is enough for a vector; where places come back, none is given up.
    stride = 2 if len(u) == 1 else 1
    return nn.Sequential(
        *_separable(z[0], width, places, stride),
        *_separable(width, width, places, stride),
        _POOLS[len(z)](pooled if places > 1 else pooled[0]),  # repeats places where u has more of them
        *([nn.Flatten(), nn.Linear(width, u[0])] if len(u) == 1 else [_CONVOLUTIONS[len(z)](width, u[0], 1)]),
        nn.ReLU(),
    )


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


def widest(z: Shape, u: Shape, macs: int) -> int:
    """The largest width whose local network takes at most so many multiply-accumulates; 0: not even one channel."""
    low, high = 0, MOST_WIDTH + 1  # `low` fits, `high` does not, or is not asked for
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if local_macs(z, u, middle) <= macs else (low, middle)
    return low
