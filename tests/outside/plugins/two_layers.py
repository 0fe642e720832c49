"""A network of three linear layers; what it is made of lies beside it."""

from dataclasses import dataclass
from math import prod

from torch import nn
from widths import MIDDLE

from cutlayer.nets import Net


@dataclass(frozen=True, repr=False)
class TwoLayers(Net):
    """Linear layers with the cut behind the first."""

    width: int = 8

    def check(self, shape):
        if not shape or prod(shape) < 4:
            raise ValueError(f"TwoLayers reads inputs of 4 numbers or more; got {shape}")

    def head(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), self.width), nn.ReLU())

    def body(self, shape):
        return nn.Sequential(nn.Linear(self.width, MIDDLE), nn.ReLU())

    def tail(self, shape, classes):
        return nn.Linear(MIDDLE, classes)
