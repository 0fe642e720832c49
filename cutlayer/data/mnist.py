"""MNIST: 70,000 handwritten digits."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .base import About, Loaded, Source
from .idx import SIDE, forms, read_split

HOMES = ("mnist", "MNIST/raw")
ORIGIN = "These are the four official IDX files of MNIST, zipped or not, as torchvision also keeps them."
# The .gz as published; the others are what those unpack to.
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True, repr=False)
class MNIST(Source):
    """Handwritten digits, 1x28x28, 60,000 + 10,000, 10 classes; IDX files in mnist/ or MNIST/raw/."""

    about: ClassVar[About] = About(
        name="MNIST",
        licence="usually given as CC BY-SA 3.0; the files themselves state none",
        origin=ORIGIN,
        shape=(1, SIDE, SIDE),
        classes=10,
        sizes=((60_000, 10_000),),
        forms=forms(HOMES),
        md5=MD5,
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere
    mirrors: ClassVar[bool] = False  # a mirrored digit is none

    def read(self, folder: Path | None) -> Loaded:
        return Loaded(
            train=read_split(folder, HOMES, "train", 60_000, ORIGIN),
            test=read_split(folder, HOMES, "t10k", 10_000, ORIGIN),
            classes=tuple("0123456789"),
        )
