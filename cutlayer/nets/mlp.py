"""MLP: linear layers for rows of a table."""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from .base import Net, Shape


@dataclass(frozen=True, repr=False)
class MLP(Net):
    """Linear layers for rows of a table; cut at the first width, 64 numbers unless told otherwise.

    `widths` are those of the hidden layers: the first is the client's, the others are the server's.
    """

    widths: tuple[int, ...] = (64, 32)

    def __post_init__(self) -> None:
        whole = isinstance(self.widths, tuple) and all(type(width) is int and width > 0 for width in self.widths)
        if not whole or len(self.widths) < 2:
            raise ValueError(
                f"widths is a tuple of two or more whole numbers above 0, e.g. (64, 32): the client's layer, then "
                f"the server's; got {self.widths!r}"
            )

    def check(self, shape: Shape) -> None:
        if len(shape) != 1 or shape[0] < 1:
            raise ValueError(
                f"MLP reads (features,), one row of a table; got {tuple(shape)}. "
                "For (channels, length) take SignalNet, for images SimpleCNN"
            )

    def check_vocabulary(self, vocabulary: int) -> None:
        if vocabulary:
            raise ValueError(
                "MLP reads amounts, and these data are token ids, which are names of words: take "
                f"TextEncoder(vocabulary={vocabulary})"
            )

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Sequential(nn.Linear(shape[0], self.widths[0]), nn.ReLU())

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = [(nn.Linear(width, out), nn.ReLU()) for width, out in pairwise(self.widths)]
        return nn.Sequential(*(layer for pair in layers for layer in pair))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(self.widths[-1], classes)
