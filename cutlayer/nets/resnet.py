"""ResNet-18 (He et al. 2016), cut after its stem or one block later."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from .base import Net, Shape, check_choice, check_image, normalise


@dataclass(frozen=True, repr=False)
class ResNet18(Net):
    """ResNet-18; cut at 64x8x8 for 32x32 images with the ImageNet stem, 64x32x32 with the CIFAR stem.

    `depth=1` is LightSplit's L1H, `depth=2` its L2H. Table II gives L2H the body of L1H, which would mean an
    extra block; a deeper cut of the same network moves the first block to the client instead, and so do
    we unless `extra=True`. Head and body use torchvision's parameter names.
    """

    stem: Literal["imagenet", "cifar"] = "imagenet"
    depth: Literal[1, 2] = 1
    extra: bool = False
    norm: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        check_choice("stem", self.stem, ("imagenet", "cifar"))
        check_choice("depth", self.depth, (1, 2))
        check_choice("norm", self.norm, ("batch", "group"))
        if self.extra and self.depth == 1:
            raise ValueError("extra=True adds the second level's block; it needs depth=2, got depth=1")

    def check(self, shape: Shape) -> None:
        check_image("ResNet18", shape, smallest=1, published=(3, 32, 32))

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if self.stem == "imagenet":
            layers["conv1"] = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        else:
            layers["conv1"] = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        layers["bn1"] = normalise(self.norm, 64)
        layers["relu"] = nn.ReLU()
        if self.stem == "imagenet":
            layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
        if self.depth == 2:
            name = "extra" if self.extra else "layer1"
            layers[name] = nn.Sequential(Block(64, 64, 1, self.norm))
        return _initialised(nn.Sequential(layers))

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        moved = self.depth == 2 and not self.extra
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        # Without its first block layer1 still calls the second one "1", as a checkpoint does.
        layers["layer1"] = nn.Sequential(
            OrderedDict((str(i), Block(64, 64, 1, self.norm)) for i in range(int(moved), 2))
        )
        for i, channels in enumerate((128, 256, 512), start=2):
            layers[f"layer{i}"] = nn.Sequential(
                Block(channels // 2, channels, 2, self.norm), Block(channels, channels, 1, self.norm)
            )
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        return _initialised(nn.Sequential(layers))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return nn.Linear(512, classes)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = normalise(norm, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = normalise(norm, out)
        self.relu = nn.ReLU()
        # None and not Identity: torchvision's blocks have no such entry either.
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), normalise(norm, out)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + shortcut)


def _initialised(part: nn.Module) -> nn.Module:
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")  # He et al. 2015
    return part
