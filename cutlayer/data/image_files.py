"""Picture files, one a sample, decoded into one array of bytes: at once, or as they are asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import CorruptData
from .paths import Paths
from .rows import Store
from .samples import Samples
from .streamed import in_memory_or_not

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")  # not every format Pillow has: some start other programs
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
SHOWN = 3  # sizes or files that an error names
Size = int | tuple[int, int]  # pixels a side, or (height, width)


@dataclass(frozen=True, eq=False)
class Listing:
    """Samples whose pictures are still on disk."""

    paths: Sequence[Path]
    y: Tensor
    s: Mapping[str, Tensor] = field(default_factory=dict)
    identity: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> "Listing":
        return Listing(
            Paths.of(self.paths).at(rows),
            self.y[rows],
            {name: values[rows] for name, values in self.s.items()},
            None if self.identity is None else self.identity[rows],
        )


class Frame(NamedTuple):
    """What all pictures of a set have in common once they are read."""

    mode: str
    width: int
    height: int
    rim: float = 0.0  # share of each side that is cut off before a picture is resized


class PictureRows(Store):
    """The pixels of picture files, decoded when they are read."""

    def __init__(self, paths: Sequence[Path], frame: Frame):
        self.paths, self.frame = Paths.of(paths), frame
        self.shape, self.dtype = (len(frame.mode), frame.height, frame.width), torch.uint8

    def __len__(self) -> int:
        return len(self.paths)

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        return partial(_pixels, list(self.paths.at(which)), self.frame)


def decode(train: Listing, test: Listing, size: Size | None) -> tuple[Samples, Samples]:
    """The pictures of both, all in one shape: theirs, or a square or rectangle of `size` pixels."""
    return framed(train, test, _frame([train.paths, test.paths], size))


def framed(train: Listing, test: Listing, frame: Frame) -> tuple[Samples, Samples]:
    """The pictures of both; where they are too many for the memory they are decoded as they are asked for."""
    x, x_test = in_memory_or_not(PictureRows(train.paths, frame), PictureRows(test.paths, frame))
    pictures = ((x, train), (x_test, test))
    first, second = (Samples(rows, of.y, of.s, of.identity, places=Paths.of(of.paths)) for rows, of in pictures)
    return first, second


def check_size(size: Size | None) -> None:
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    if size is not None and any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(
            f"size is the width and height that pictures get, at least 1; got {size!r}: "
            "give a number, or (height, width)"
        )


@contextmanager
def opened(path: Path) -> Iterator["Image"]:
    """A picture; whatever goes wrong while it is open is said of its file."""
    from PIL import Image  # the core runs without it

    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    # A damaged picture can fail anywhere in its decoder.
    except Exception as error:
        raise CorruptData(path, f"not a picture that can be read ({error})") from error


def _frame(listed: Sequence[Sequence[Path]], size: Size | None) -> Frame:
    """Read off the headers of all files, before any is decoded."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for path in chain.from_iterable(listed):
        with opened(path) as image:
            if image.mode not in GREY + COLOUR:
                raise ValueError(f"its pixels are of the kind {image.mode}, not 8 bits a colour")
            grey = grey and image.mode in GREY
            sizes[image.size] += 1
    if size is None and len(sizes) > 1:
        common = ", ".join(f"{width}x{height} ({count})" for (width, height), count in sizes.most_common(SHOWN))
        raise ValueError(
            f"the {sizes.total()} pictures have {len(sizes)} sizes: {common}{', …' if len(sizes) > SHOWN else ''}; "
            f"give size={min(min(pair) for pair in sizes)} (or another number) to cut each to its central square of "
            "that many pixels, or resize the files"
        )
    if size is None:
        width, height = next(iter(sizes))
    else:
        height, width = size if isinstance(size, tuple) else (size, size)
    return Frame("L" if grey else "RGB", width, height)


def _pixels(paths: Sequence[Path], frame: Frame) -> Tensor:
    from PIL import Image, ImageOps

    shape, bilinear = (frame.width, frame.height), Image.Resampling.BILINEAR
    x = np.empty((len(paths), len(frame.mode), frame.height, frame.width), np.uint8)
    for path, place in zip(paths, x, strict=True):
        with opened(path) as image:
            picture = image.convert(frame.mode)
            if picture.size != shape or frame.rim:
                # The shorter side decides: nothing is stretched, and what a longer side has more is cut off.
                picture = ImageOps.fit(picture, shape, bilinear, frame.rim)
            place[:] = np.asarray(picture).reshape(frame.height, frame.width, -1).transpose(2, 0, 1)
    return torch.from_numpy(x)
