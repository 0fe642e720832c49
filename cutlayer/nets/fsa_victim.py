"""The victim of the feature sniffer (FSA): a narrow ResNet-18 whose early blocks do not normalise."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image
from .initial import initialised, small_linear
from .resnet import Block, residual_stages, small_stem

STAGES = ((32, 2), (64, 2), (128, 2), (256, 2))  # channels, blocks
AT_HOME = {1: 0, 2: 2, 3: 4}  # level: blocks in the head


@dataclass(frozen=True, repr=False)
class FSAClient(Net):
    """FSA's victim; cut at 32x32x32 (level=1 and 2) or 64x16x16 (3) for 32x32 images.

    At `level=1` the stem does not normalise either, as in the attack's code.
    """

    level: Literal[1, 2, 3] = 2
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("level", self.level, tuple(AT_HOME))
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("FSAClient", shape, smallest=1, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = small_stem(shape[0], 32, "none" if self.level == 1 else self.norm)
        layers |= self._stages(range(AT_HOME[self.level]))
        return initialised(nn.Sequential(layers), "fan_in")

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = self._stages(range(AT_HOME[self.level], 8))
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        return initialised(nn.Sequential(layers), "fan_in")

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return small_linear(256, classes, std=1e-3)

    def _stages(self, span: range) -> "OrderedDict[str, nn.Module]":
        return residual_stages(self._block, STAGES, 32, span)

    def _block(self, channels: int, out: int, stride: int) -> nn.Module:
        return Block(channels, out, stride, self.norm if out > 64 else "none")
