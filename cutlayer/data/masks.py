"""Label maps: a class for every pixel of a picture, cut and resized as the picture is."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.batch import NO_LABEL
from .files import CorruptData
from .image_files import Frame, PictureRows, opened
from .paths import Paths
from .rows import Store
from .streamed import in_memory_or_not

IGNORED = 255  # the value of pixels that have no class, in the masks of most sets
# Of PASCAL VOC, which COCO is read as, too. The colour of a mask's pixel stands for the number.
CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


class Maps(Store):
    """Label maps as bytes; `Labels` makes numbers of them."""

    dtype = torch.uint8

    def __init__(self, frame: Frame):
        self.frame, self.shape = frame, (frame.height, frame.width)

    @abstractmethod
    def task(self, which: Tensor) -> Callable[[], Tensor]: ...


class Masks(Maps):
    """Mask files beside picture files."""

    def __init__(self, masks: Sequence[Path], pictures: Sequence[Path], frame: Frame, classes: int):
        super().__init__(frame)
        self.masks, self.pictures, self.classes = Paths.of(masks), Paths.of(pictures), classes

    def __len__(self) -> int:
        return len(self.masks)

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        pairs = list(zip(self.masks.at(which), self.pictures.at(which), strict=True))
        return partial(_masks, pairs, self.frame, self.classes)


class Labels(Store):
    """Label maps as a loss reads them: int64, and `NO_LABEL` where a pixel has no class. Bytes are what is kept."""

    dtype = torch.int64

    def __init__(self, maps: Store):
        self.maps, self.shape = maps, maps.shape

    def __len__(self) -> int:
        return len(self.maps)

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        return partial(_labels, self.maps.task(which))

    def read(self, which: Tensor) -> Tensor:
        return _labels(partial(self.maps.read, which))

    def soon(self, batches: Iterable[Tensor]) -> None:
        self.maps.soon(batches)

    def streamed(self, memory: int, workers: int) -> Store:
        return Labels(self.maps.streamed(memory, workers))


def with_maps(sets: Sequence[tuple[Sequence[Path], Maps]], frame: Frame) -> list[tuple[Tensor, Tensor]]:
    """The pictures and label maps of several parts of a set, in memory if all of them fit."""
    stores = [store for pictures, maps in sets for store in (PictureRows(pictures, frame), Labels(maps))]
    found = in_memory_or_not(*stores)
    return list(zip(found[::2], found[1::2], strict=True))


def fitted(mask: np.ndarray, frame: Frame) -> np.ndarray:
    """A map in the size of its picture, cut as pictures are; no pixel gets a class that lies between two."""
    from PIL import Image, ImageOps

    picture, shape = Image.fromarray(mask), (frame.width, frame.height)
    if picture.size == shape and not frame.rim:
        return mask
    return np.asarray(ImageOps.fit(picture, shape, Image.Resampling.NEAREST, frame.rim))


def _labels(read: Callable[[], Tensor]) -> Tensor:
    found = read().long()
    return found.masked_fill_(found == IGNORED, NO_LABEL)


def _masks(pairs: Sequence[tuple[Path, Path]], frame: Frame, classes: int) -> Tensor:
    return torch.from_numpy(np.stack([fitted(_mask(*pair, classes), frame) for pair in pairs]))


def _mask(path: Path, picture: Path, classes: int) -> np.ndarray:
    with opened(picture) as image:
        size = image.size
    with opened(path) as image:
        mode, found, mask = image.mode, image.size, np.array(image)
    if mode not in ("P", "L"):
        raise CorruptData(path, f"its pixels are of the kind {mode}, not one class number each")
    if found != size:
        raise CorruptData(path, f"it has {_times(found)} pixels, its picture {picture.name} {_times(size)}")
    if ((mask >= classes) & (mask != IGNORED)).any():
        wrong = int(mask[(mask >= classes) & (mask != IGNORED)][0])
        raise CorruptData(path, f"it has a pixel of class {wrong}, and classes are 0 to {classes - 1} (255: none)")
    return mask


def _times(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))
