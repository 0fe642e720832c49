"""Fashion-MNIST: 70,000 pieces of clothing, in the files and shapes of MNIST."""

from dataclasses import dataclass
from pathlib import Path

from .base import Loaded, Source
from .idx import read_split

HOMES = ("fashion-mnist", "FashionMNIST/raw")
ORIGIN = "These are the four IDX files of github.com/zalandoresearch/fashion-mnist (MIT licence), zipped or not."
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True, repr=False)
class FashionMNIST(Source):
    """Clothing, 1x28x28, 60,000 + 10,000, 10 classes; IDX files in fashion-mnist/ or FashionMNIST/raw/."""

    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        return Loaded(
            train=read_split(folder, HOMES, "train", 60_000, ORIGIN),
            test=read_split(folder, HOMES, "t10k", 10_000, ORIGIN),
            classes=CLASSES,
        )
