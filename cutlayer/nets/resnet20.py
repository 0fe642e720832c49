"""ResNet-20 for small images (He et al. 2016, Sec. 4.2): the victim of SDAR."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from .base import Net, Shape, check_choice, check_image
from .initial import initialised
from .resnet import Block, residual_stages, small_stem

STAGES = ((16, 3), (32, 3), (64, 3))  # channels, blocks


@dataclass(frozen=True, repr=False)
class ResNet20(Net):
    """SDAR's victim; cut at 16x32x32 (level=3), 32x16x16 (4 to 6) or 64x8x8 (7 to 9) for 32x32 images.

    `level` counts the residual blocks in the head. The tail is the global pool and the last linear layer; in the U
    shape `level=9` leaves the server nothing to compute. Shortcuts are 1x1 convolutions, as in SDAR's code.
    """

    level: Literal[3, 4, 5, 6, 7, 8, 9] = 4
    norm: Literal["batch", "group"] = "batch"

    tail_name: ClassVar[str | None] = ""  # torchvision's names throughout

    def __post_init__(self) -> None:
        check_choice("level", self.level, (3, 4, 5, 6, 7, 8, 9))
        check_choice("norm", self.norm, ("batch", "group"))

    def check(self, shape: Shape) -> None:
        check_image("ResNet20", shape, smallest=1, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = small_stem(shape[0], 16, self.norm)
        layers |= residual_stages(self._block, STAGES, 16, range(self.level))
        return initialised(nn.Sequential(layers))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return initialised(nn.Sequential(residual_stages(self._block, STAGES, 16, range(self.level, 9))))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Sequential(
            OrderedDict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(64, classes))
        )

    def _block(self, channels: int, out: int, stride: int) -> nn.Module:
        return Block(channels, out, stride, self.norm)
