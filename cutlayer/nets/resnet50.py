"""ResNet-50 (He et al. 2016) and its wide variant (Zagoruyko & Komodakis 2016), in torchvision's layout."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise
from .initial import initialised
from .resnet import check_blocks, check_colours, imagenet_stem, residual_stages, scaled, shortcut

STAGES = ((256, 3), (512, 4), (1024, 6), (2048, 3))  # channels, blocks
BLOCKS = 16
AT_HOME = {1: 0, 2: 1, 3: 3, 4: 7, 5: 13, 6: 16}  # depth: blocks in the head


@dataclass(frozen=True, repr=False)
class ResNet50(Net):
    """ResNet-50; cut at 64x8x8 for 32x32 images.

    SEAL's "ResNet50" with 67,039,140 parameters is `wide=True` (wide_resnet50_2) with 100 classes; its client holds
    the stem (`depth=1`). `depth=2` adds the first block, 3 all of layer1 (both 256x8x8), 4 layer2 (512x4x4), 5 layer3
    (1024x2x2), 6 layer4 (2048x1x1; 2048x7x7 of 224x224: LFQ's ImageNet, "after the 8th layer"). `blocks` cuts behind
    any of the 16 blocks instead. Parameters have torchvision's names; `scale="imagenet"` puts inputs on the scale of
    its weights.
    """

    wide: bool = False
    depth: Literal[1, 2, 3, 4, 5, 6] = 1
    norm: Literal["batch", "group"] = "batch"
    blocks: int | None = None  # in the head, in place of depth
    scale: Literal["none", "imagenet"] = "none"

    tail_name: ClassVar[str | None] = "fc"

    def __post_init__(self) -> None:
        check_choice("depth", self.depth, tuple(AT_HOME))
        check_choice("norm", self.norm, ("batch", "group"))
        check_blocks(self.blocks, self.depth, BLOCKS)
        check_choice("scale", self.scale, ("none", "imagenet"))

    def check(self, shape: Shape) -> None:
        check_image("ResNet50", shape, smallest=1, published=(3, 32, 32))
        check_colours(self, self.scale, shape)

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = scaled(self.scale) | imagenet_stem(shape[0], self.norm)
        layers |= residual_stages(self._block, STAGES, 64, range(self._at_home()))
        return initialised(nn.Sequential(layers))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = residual_stages(self._block, STAGES, 64, range(self._at_home(), BLOCKS))
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        return initialised(nn.Sequential(layers))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(2048, classes)

    def _at_home(self) -> int:
        return AT_HOME[self.depth] if self.blocks is None else self.blocks

    def _block(self, channels: int, out: int, stride: int) -> nn.Module:
        return Bottleneck(channels, out // 4 * (2 if self.wide else 1), out, stride, self.norm)


class Bottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to `out`, and a shortcut. The 3x3 carries the stride, as in torchvision."""

    draws_nothing = True

    def __init__(self, channels: int, width: int, out: int, stride: int, norm: str, rate: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = normalise(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=rate, dilation=rate, bias=False)
        self.bn2 = normalise(norm, width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = normalise(norm, out)
        self.relu = nn.ReLU()
        self.downsample = shortcut(channels, out, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        passed = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + passed)
