"""The input as a picture file: what a learned bottleneck has to beat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.batch import Task
from ..core.guard import GuardModule, Shape
from ..core.search import Between, Search
from ..wire.codecs import image_file as pictures
from ..wire.codecs.image_file import Album
from .base import Guard
from .parts.straight_through import StraightThrough

Picture = NDArray[np.uint8]


@dataclass(frozen=True, repr=False)
class JPEG(Guard):
    """The input leaves as a JPEG file of this quality, for networks cut at their input: Whole(net=...) (baseline).

    The server computes with the decoded pictures. What all files of a batch begin with (tables, sizes) travels once.
    """

    quality: int = 75
    always_shown: ClassVar[int] = 1
    in_suite: ClassVar[bool] = False  # pictures need a cut at the input
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    reads_pictures: ClassVar[bool] = True
    search: ClassVar[Search] = {"quality": Between(5, 95)}

    def __post_init__(self) -> None:
        if type(self.quality) is not int or not 1 <= self.quality <= 100:
            name = type(self).__name__
            raise ValueError(f"{name}'s quality is a whole number from 1 (small) to 100 (good); got {self.quality!r}")

    def coder(self) -> tuple[int, Callable[[Picture, int], bytes], Callable[[bytes, Shape], Picture]]:
        """Its number in the codec, how to write a file, and how to read one."""
        return pictures.JPEG, pictures.jpeg, pictures.read_jpeg

    def out_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] not in pictures.MODES or max(shape[1:]) > pictures.MOST_SIDE:
            raise ValueError(
                f"{self} codes pictures of 1 or 3 channels, and this cut is {shape}: "
                "cut the network at its input, --net 'Whole(net=SimpleCNN())'"
            )
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return StraightThrough(self, private)

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """The pictures as they come out of their files, and these files."""
        if not ((tensor >= 0) & (tensor <= 1)).all():
            raise ValueError(
                f"{self} codes pictures, values from 0 to 1, and these go from {float(tensor.min()):.3g} to "
                f"{float(tensor.max()):.3g}: cut the network at its input, --net 'Whole(net=SimpleCNN())'"
            )
        shape, (format, write, read) = tuple(tensor.shape), self.coder()
        files = tuple(write(picture, self.quality) for picture in pictures.pixels(tensor))
        seen = pictures.values([read(file, shape[1:]) for file in files], tensor.dtype, shape)
        return seen.to(tensor.device), Album(files, format)


@dataclass(frozen=True, repr=False)
class HEVC(JPEG):
    """The input leaves as a HEIF file of this quality, coded by HEVC, for Whole(net=...) (baseline; extra `hevc`)."""

    quality: int = 50
    search: ClassVar[Search] = {"quality": Between(5, 95)}

    def coder(self) -> tuple[int, Callable[[Picture, int], bytes], Callable[[bytes, Shape], Picture]]:
        return pictures.HEIF, pictures.heif, pictures.read_heif

    def out_shape(self, shape: Shape) -> Shape:
        pictures.library()  # whoever lacks it hears of it before anything is built
        return super().out_shape(shape)
