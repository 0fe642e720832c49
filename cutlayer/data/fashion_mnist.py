"""Fashion-MNIST: 70,000 pieces of clothing, in the files and shapes of MNIST."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .base import About, Loaded, Source
from .idx import SIDE, forms, read_split

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
# The .gz as published; the others are what those unpack to.
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


@dataclass(frozen=True, repr=False)
class FashionMNIST(Source):
    """Clothing, 1x28x28, 60,000 + 10,000, 10 classes; IDX files in fashion-mnist/ or FashionMNIST/raw/."""

    about: ClassVar[About] = About(
        name="Fashion-MNIST",
        licence="MIT (Zalando SE)",
        origin=ORIGIN,
        shape=(1, SIDE, SIDE),
        classes=10,
        sizes=((60_000, 10_000),),
        forms=forms(HOMES),
        md5=MD5,
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def read(self, folder: Path | None) -> Loaded:
        return Loaded(
            train=read_split(folder, HOMES, "train", 60_000, ORIGIN),
            test=read_split(folder, HOMES, "t10k", 10_000, ORIGIN),
            classes=CLASSES,
        )
