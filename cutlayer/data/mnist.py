"""MNIST: 70,000 handwritten digits."""

from dataclasses import dataclass
from pathlib import Path

from .base import Loaded, Source
from .idx import read_split

HOMES = ("mnist", "MNIST/raw")
ORIGIN = "These are the four official IDX files of MNIST, zipped or not, as torchvision also keeps them."


@dataclass(frozen=True, repr=False)
class MNIST(Source):
    """Handwritten digits, 1x28x28, 60,000 + 10,000, 10 classes; IDX files in mnist/ or MNIST/raw/."""

    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        return Loaded(
            train=read_split(folder, HOMES, "train", 60_000, ORIGIN),
            test=read_split(folder, HOMES, "t10k", 10_000, ORIGIN),
            classes=tuple("0123456789"),
        )
