"""The home stream of a bypass, and how it rejoins what the server returns."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

FUSIONS = ("residual", "concat", "hybrid")


COARSE = 4  # places a side


class Rejoin(nn.Module):
    """The home stream of a bypass, brought to the shape of u and fused with it.

    residual: u + home; concat: a 1x1 mix of both; hybrid: that mix + u (PRISM: Madill 2025, Sec. 3.3.4). There, a
    local block first gives the home stream the size of u (BypassDownsample, Sec. 3.3.3). What is in it is ours: a
    strided 3-wide convolution with ReLU, averages over as many places as u has, and a 1x1 mix to its channels.
    Where u is a vector, the mix reads a coarse grid of averages.
    """

    def __init__(self, home: Sequence[int], u: Sequence[int], fusion: str = "residual"):
        super().__init__()
        (channels, *space), (width, *size) = home, u
        self.look: nn.Module = nn.Identity()
        if len(space) in (1, 2):  # a row of a table has no neighbours to look at
            convolution, stride = (nn.Conv1d, nn.Conv2d)[len(space) - 1], 2 if prod(space) > prod(size) else 1
            self.look = nn.Sequential(convolution(channels, channels, 3, stride=stride, padding=1), nn.ReLU())
            space = [(side - 1) // stride + 1 for side in space]
        # One mean over all places would forget where things were.
        grid = size or [min(side, COARSE) for side in space]
        self.average = Averages(space, grid)
        self.mix = nn.Conv1d(channels if size else channels * prod(grid), width, 1)
        self.fuse = None if fusion == "residual" else nn.Conv1d(2 * width, width, 1)
        self.adds = fusion != "concat"

    def forward(self, u: Tensor, home: Tensor) -> Tensor:
        # Channels x places on both sides; a vector has one place.
        theirs = u.reshape(*u.shape[:2], -1)
        means = self.average(self.look(home))
        ours = self.mix(means if u.dim() > 2 else means.reshape(len(means), -1, 1))
        if self.fuse is not None:
            ours = self.fuse(torch.cat([theirs, ours], dim=1))
        return (ours + theirs if self.adds else ours).reshape(u.shape)


class Averages(nn.Module):
    """Means over places: on the grid of `size` where both are maps, otherwise in order, as many as `size` has places.

    These are products with small matrices, because torch's adaptive pooling is not reproducible on a GPU.
    """

    axis0: Tensor
    axis1: Tensor

    def __init__(self, space: Sequence[int], size: Sequence[int]):
        super().__init__()
        self.maps = len(space) == len(size) == 2
        axes = zip(space, size, strict=True) if self.maps else [(prod(space), prod(size))]
        for number, (side, count) in enumerate(axes):
            means = adaptive_avg_pool1d(torch.eye(side)[None], count)[0]  # side x count
            self.register_buffer(f"axis{number}", means, persistent=False)

    def forward(self, home: Tensor) -> Tensor:
        if self.maps:
            return (self.axis0.T @ home @ self.axis1).flatten(2)
        return home.reshape(*home.shape[:2], -1) @ self.axis0


class OnTokens(nn.Module):
    """What works on channels, for sequences: (tokens, features) are turned before it and behind it."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *given: Tensor) -> Tensor:
        made = self.inner(*(turned(one, 3) for one in given))
        return turned(made, 3).contiguous()


def turned(one: Any, dims: int = 2) -> Any:
    """A tensor, or a shape, with its last two dimensions swapped where it has so many; a vector stays as it is."""
    if isinstance(one, Tensor):
        return one.mT if one.dim() == dims else one
    return (one[1], one[0]) if len(one) == dims else one


class FillChannels(nn.Module):
    """The server's side of a bypass: zeros where the channels are that stayed home."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, shared: Tensor) -> Tensor:
        missing = shared.new_zeros(len(shared), self.channels - shared.shape[1], *shared.shape[2:])
        return torch.cat([shared, missing], dim=1)
