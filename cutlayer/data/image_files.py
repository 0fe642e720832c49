"""Picture files, one a sample, decoded into one array of bytes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import CorruptData
from .samples import Samples

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
            [self.paths[row] for row in rows.tolist()],
            self.y[rows],
            {name: values[rows] for name, values in self.s.items()},
            None if self.identity is None else self.identity[rows],
        )


class Frame(NamedTuple):
    """What all pictures of a set have in common once they are read."""

    mode: str
    width: int
    height: int


def decode(train: Listing, test: Listing, size: Size | None) -> tuple[Samples, Samples]:
    """The pictures of both, all in one shape: theirs, or a square or rectangle of `size` pixels."""
    frame = _frame([*train.paths, *test.paths], size)
    return _samples(train, frame), _samples(test, frame)


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


def _frame(paths: Sequence[Path], size: Size | None) -> Frame:
    """Read off the headers of all files, before any is decoded."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for path in paths:
        with opened(path) as image:
            if image.mode not in GREY + COLOUR:
                raise ValueError(f"its pixels are of the kind {image.mode}, not 8 bits a colour")
            grey = grey and image.mode in GREY
            sizes[image.size] += 1
    if size is None and len(sizes) > 1:
        common = ", ".join(f"{width}x{height} ({count})" for (width, height), count in sizes.most_common(SHOWN))
        raise ValueError(
            f"the {len(paths)} pictures have {len(sizes)} sizes: {common}{', …' if len(sizes) > SHOWN else ''}; "
            f"give size={min(min(pair) for pair in sizes)} (or another number) to cut each to its central square of "
            "that many pixels, or resize the files"
        )
    if size is None:
        width, height = next(iter(sizes))
    else:
        height, width = size if isinstance(size, tuple) else (size, size)
    return Frame("L" if grey else "RGB", width, height)


def _samples(listing: Listing, frame: Frame) -> Samples:
    return Samples(_pixels(listing.paths, frame), listing.y, listing.s, listing.identity)


def _pixels(paths: Sequence[Path], frame: Frame) -> Tensor:
    from PIL import Image, ImageOps

    shape, bilinear = (frame.width, frame.height), Image.Resampling.BILINEAR
    x = np.empty((len(paths), len(frame.mode), frame.height, frame.width), np.uint8)
    for path, place in zip(paths, x, strict=True):
        with opened(path) as image:
            picture = image.convert(frame.mode)
            if picture.size != shape:
                # The shorter side decides: nothing is stretched, and what a longer side has more is cut off.
                picture = ImageOps.fit(picture, shape, bilinear)
            place[:] = np.asarray(picture).reshape(frame.height, frame.width, -1).transpose(2, 0, 1)
    return torch.from_numpy(x)
