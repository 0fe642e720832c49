"""MNIST as series: a digit is read row by row, as recurrent networks have long been tried on it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from .base import About, Loaded, Samples, Source
from .idx import SIDE
from .mnist import MNIST


@dataclass(frozen=True, repr=False)
class MNISTRows(Source):
    """MNIST as series, 28x28, 60,000 + 10,000, 10 classes: a channel for each column, a point in time for each row.

    Amounts from 0 to 1; for networks such as `SignalNet`. The files are MNIST's.
    """

    about: ClassVar[About] = replace(MNIST.about, name="MNIST, row by row", shape=(SIDE, SIDE))

    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        images = MNIST().read(folder)
        return replace(images, train=_in_rows(images.train), test=_in_rows(images.test))


def _in_rows(images: Samples) -> Samples:
    return replace(images, x=images.images().squeeze(1).transpose(1, 2).contiguous())
