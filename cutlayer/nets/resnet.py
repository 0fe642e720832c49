"""ResNet-18 (He et al. 2016), cut after its stem, after any of its blocks, or after any of its stages."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise
from .decoupler import FieldConvolution, check_fields
from .initial import initialised
from .inputs import ImageNetScale

STAGES = ((64, 2), (128, 2), (256, 2), (512, 2))  # channels, blocks
AT_HOME = {1: 0, 2: 1, 3: 2, 4: 4, 5: 6, 6: 8}  # depth: blocks in the head


@dataclass(frozen=True, repr=False)
class ResNet18(Net):
    """ResNet-18; cut at 64x8x8 for 32x32 images with the ImageNet stem, 64x32x32 with the CIFAR stem.

    `depth=1` is LightSplit's L1H, `depth=2` its L2H. Table II gives L2H the body of L1H, which would mean an
    extra block; a deeper cut of the same network moves the first block to the client instead, and so do
    we unless `extra=True`. `depth=3` cuts after layer1, `depth=4` after layer2 (PRISM, SL-FC): 128x4x4, or
    128x16x16 with the CIFAR stem; `depth=5` after layer3 (256x2x2: FORA's last split point), `depth=6` after layer4
    (512x1x1). LFQ's Fig. 2.8 counts these as layers 5 to 8. `blocks` cuts behind any of the 8 blocks instead.
    `stem="fields"` is the ImageNet stem behind DISCO's spatial decoupler: its channels are fields of the image.
    Parameters have torchvision's names; `scale="imagenet"` puts inputs on the scale of its weights.
    """

    stem: Literal["imagenet", "cifar", "fields"] = "imagenet"
    depth: Literal[1, 2, 3, 4, 5, 6] = 1
    extra: bool = False
    norm: Literal["batch", "group"] = "batch"
    blocks: int | None = None  # in the head, in place of depth
    scale: Literal["none", "imagenet"] = "none"

    tail_name: ClassVar[str | None] = "fc"

    def __post_init__(self) -> None:
        check_choice("stem", self.stem, ("imagenet", "cifar", "fields"))
        check_choice("depth", self.depth, tuple(AT_HOME))
        check_choice("norm", self.norm, ("batch", "group"))
        if self.extra and self.depth != 2:
            raise ValueError(f"extra=True adds the second level's block; it needs depth=2, got depth={self.depth}")
        check_blocks(self.blocks, self.depth, 8)
        check_choice("scale", self.scale, ("none", "imagenet"))

    def check(self, shape: Shape) -> None:
        check_image("ResNet18", shape, smallest=1, published=(3, 32, 32))
        check_colours(self, self.scale, shape)
        if self.stem == "fields":
            check_fields(shape)

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        channels, small = shape[0], self.stem == "cifar"
        stem = small_stem(channels, 64, self.norm) if small else imagenet_stem(channels, self.norm)
        if self.stem == "fields":
            stem["conv1"] = FieldConvolution(channels, 64, 7, stride=2, padding=3, bias=False)
        layers = scaled(self.scale) | stem
        if self.extra:
            layers["extra"] = nn.Sequential(self._block(64, 64, 1))
        layers |= residual_stages(self._block, STAGES, 64, range(self._at_home()))
        return initialised(nn.Sequential(layers))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers = residual_stages(self._block, STAGES, 64, range(self._at_home(), 8))
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        return initialised(nn.Sequential(layers))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(512, classes)

    def _at_home(self) -> int:
        if self.blocks is not None:
            return self.blocks
        return 0 if self.extra else AT_HOME[self.depth]

    def _block(self, channels: int, out: int, stride: int) -> nn.Module:
        return Block(channels, out, stride, self.norm)


def check_blocks(blocks: int | None, depth: int, most: int) -> None:
    if blocks is None:
        return
    if type(blocks) is not int or not 0 <= blocks <= most:
        raise ValueError(f"blocks is how many residual blocks the head has, 0 to {most}; got {blocks!r}")
    if depth != 1:
        raise ValueError(f"blocks={blocks} and depth={depth} both say where the cut is: leave one of them out")


def check_colours(net: Net, scale: str, shape: Shape) -> None:
    if scale == "imagenet" and shape[0] != 3:
        raise ValueError(f"{net!r} has the scale of three colours, and these images have {shape[0]}: scale='none'")


def scaled(scale: str) -> "OrderedDict[str, nn.Module]":
    """What comes before the stem."""
    return OrderedDict(scale=ImageNetScale()) if scale == "imagenet" else OrderedDict()


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    draws_nothing = True

    def __init__(self, channels: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = normalise(norm, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = normalise(norm, out)
        self.relu = nn.ReLU()
        self.downsample = shortcut(channels, out, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        passed = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + passed)


def shortcut(channels: int, out: int, stride: int, norm: str) -> nn.Module | None:
    """A 1x1 convolution where a block changes the shape. None and not Identity: as in torchvision's blocks."""
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), normalise(norm, out))


def imagenet_stem(channels: int, norm: str) -> "OrderedDict[str, nn.Module]":
    """7x7 and a pool, for large images: a quarter of the side is left."""
    return OrderedDict(
        conv1=nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        bn1=normalise(norm, 64),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
    )


def small_stem(channels: int, out: int, norm: str) -> "OrderedDict[str, nn.Module]":
    """3x3, for small images: every pixel is kept."""
    return OrderedDict(
        conv1=nn.Conv2d(channels, out, 3, padding=1, bias=False), bn1=normalise(norm, out), relu=nn.ReLU()
    )


def residual_stages(
    block: Callable[[int, int, int], nn.Module], stages: Sequence[tuple[int, int]], channels: int, span: range
) -> "OrderedDict[str, nn.Module]":
    """`layer1`, `layer2`, ... with those blocks whose number, counted over all stages, lies in `span`.

    A stage that is cut in two keeps the numbers of its blocks on both sides, as a checkpoint has them. Every stage
    but the first halves the side of its images.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, (out, count) in enumerate(stages, start=1):
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for i in range(count):
            if number in span:
                blocks[str(i)] = block(channels, out, 2 if stage > 1 and i == 0 else 1)
            channels, number = out, number + 1
        if blocks:
            layers[f"layer{stage}"] = nn.Sequential(blocks)
    return layers
