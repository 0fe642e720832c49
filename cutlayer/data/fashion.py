"""The images every installation has: 5,000 pieces of clothing of Fashion-MNIST, in files of this package."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from ..core.seeds import derive
from .base import About, Loaded, Samples, Source, stratified
from .fashion_mnist import CLASSES
from .idx import SIDE, read_idx

FOLDER = Path(__file__).parent / "shipped"  # with its licence and origin
ALL, TEST = 5_000, 500


@dataclass(frozen=True, repr=False)
class Fashion(Source):
    """Clothing, 1x28x28, 4,500 + 500, 10 classes; part of Fashion-MNIST, inside this package."""

    about: ClassVar[About] = About(
        name="Fashion-MNIST, 5,000 images",
        licence="MIT (Zalando SE)",
        origin="They come with cutlayer: no file is needed. github.com/zalandoresearch/fashion-mnist",
        shape=(1, SIDE, SIDE),
        classes=10,
        sizes=((ALL - TEST, TEST),),
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def read(self, folder: Path | None) -> Loaded:
        images = torch.from_numpy(read_idx(FOLDER / "fashion-images-idx3-ubyte.gz", (ALL, SIDE, SIDE)))
        labels = torch.from_numpy(read_idx(FOLDER / "fashion-labels-idx1-ubyte.gz", (ALL,)))
        pool = Samples(images.unsqueeze(1), labels.long())
        test = torch.zeros(ALL, dtype=torch.bool)
        test[stratified(pool.y, TEST, derive(0, "fashion", "test"))] = True
        return Loaded(train=pool[~test], test=pool[test], classes=CLASSES)
