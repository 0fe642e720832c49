"""CIFAR-10: 60,000 small photographs, from the official binary batches or zips of lossless WebP sheets."""

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .base import CorruptData, Loaded, Samples, Source, find

BATCH = 10_000
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # a binary record is a label, then the red, the green and the blue plane
GRID = 10  # a sheet shows GRID x GRID images, row by row
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ORIGIN = (
    "The .bin files are those of cifar-10-binary.tar.gz at www.cs.toronto.edu/~kriz/cifar.html; "
    "the pickled Python version is not read, because unpickling can run code."
)


@dataclass(frozen=True, repr=False)
class CIFAR10(Source):
    """Photographs, 3x32x32, 50,000 + 10,000, 10 classes; the batches as .bin or .zip of WebP in cifar10/."""

    batches: tuple[int, ...] = (1, 2, 3, 4, 5)
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.batches
        good = isinstance(wanted, tuple) and wanted and len(set(wanted)) == len(wanted)
        if not good or not set(wanted) <= {1, 2, 3, 4, 5}:
            raise ValueError(f"batches is a tuple of different numbers from 1 to 5, e.g. (1, 2); got {wanted!r}")

    def read(self, folder: Path | None) -> Loaded:
        names = [f"data_batch_{number}" for number in self.batches]
        return Loaded(
            train=read_batches([_find(folder, name) for name in names], BATCH),
            test=read_batches([_find(folder, "test_batch")], BATCH),
            classes=CLASSES,
        )


def read_batches(paths: list[Path], count: int) -> Samples:
    """The batches in `paths`, `count` images each, decoded straight into their place in one array."""
    x = np.empty((len(paths), count, *SHAPE), np.uint8)
    y = np.empty((len(paths), count), np.uint8)
    for path, images, labels in zip(paths, x, y, strict=True):
        (_read_sheets if path.suffix == ".zip" else _read_binary)(path, images, labels)
    return Samples(torch.from_numpy(x.reshape(-1, *SHAPE)), torch.from_numpy(y.reshape(-1)).long())


def _find(folder: Path | None, name: str) -> Path:
    names = (f"cifar10/{name}.zip", f"cifar10/{name}.bin", f"cifar-10-batches-bin/{name}.bin")
    return find(folder, *names, origin=ORIGIN)


def _read_binary(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    if (size := path.stat().st_size) != len(images) * RECORD:
        raise CorruptData(path, f"{len(images)} images take {len(images) * RECORD} bytes, the file has {size}")
    records = np.memmap(path, np.uint8, mode="r", shape=(len(images), RECORD))
    labels[:] = records[:, 0]
    images[:] = records[:, 1:].reshape(images.shape)


def _read_sheets(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    sheet = GRID * GRID
    try:
        with zipfile.ZipFile(path) as archive:
            if (size := archive.getinfo("labels.bin").file_size) != len(labels):
                raise CorruptData(path, f"labels.bin should hold {len(labels)} labels, it has {size}")
            labels[:] = np.frombuffer(archive.read("labels.bin"), np.uint8)
            for number in range(len(images) // sheet):
                content = archive.read(f"{number:03d}.webp")
                images[number * sheet : (number + 1) * sheet] = _tiles(content)
    # A damaged zip or image shows as any of these, depending on which bytes were hit.
    except (zipfile.BadZipFile, zlib.error, OSError, KeyError, RuntimeError, EOFError) as error:
        raise CorruptData(path, f"the zip or a WebP sheet in it is damaged ({error})") from error


def _tiles(content: bytes) -> np.ndarray:
    colours, height, width = SHAPE
    from PIL import Image  # only this form of the data needs it

    with Image.open(io.BytesIO(content), formats=["WEBP"]) as image:
        if image.size != (GRID * width, GRID * height):
            raise OSError(f"a sheet is {image.size} pixels, not {(GRID * width, GRID * height)}")
        pixels = np.asarray(image.convert("RGB"))
    tiles = pixels.reshape(GRID, height, GRID, width, colours).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(GRID * GRID, *SHAPE)
