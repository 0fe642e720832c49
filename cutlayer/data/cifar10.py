"""CIFAR-10: 60,000 small photographs, from the official batches or zips of lossless WebP sheets."""

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .base import About, CorruptData, Loaded, Samples, Source, find
from .cifar_forms import SHAPE, read_pickled, read_records

BATCH = 10_000
GRID = 10  # a sheet shows GRID x GRID images, row by row
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LIVING = torch.tensor([name not in ("airplane", "automobile", "ship", "truck") for name in CLASSES]).long()
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
HOMES = ("cifar10/{}.zip", "cifar10/{}.bin", "cifar-10-batches-bin/{}.bin", "cifar-10-batches-py/{}")
ORIGIN = (
    "The batches are those of cifar-10-binary.tar.gz or cifar-10-python.tar.gz at "
    "www.cs.toronto.edu/~kriz/cifar.html; the pickled ones are read without running what is in them."
)
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


@dataclass(frozen=True, repr=False)
class CIFAR10(Source):
    """Photographs, 3x32x32, 50,000 + 10,000, 10 classes; batches as .zip of WebP, .bin or pickled; s: living.

    The files lie in cifar10/, cifar-10-batches-bin/ or cifar-10-batches-py/. The attribute `living` is 1 for the
    six animals and 0 for aeroplanes, cars, ships and lorries.
    """

    about: ClassVar[About] = About(
        name="CIFAR-10",
        licence="none stated by its authors (Krizhevsky, 2009)",
        origin=ORIGIN,
        shape=SHAPE,
        classes=10,
        sizes=((5 * BATCH, BATCH),),
        forms=tuple(tuple(place.format(name) for name in BATCHES) for place in HOMES),
        md5=MD5,
    )

    batches: tuple[int, ...] = (1, 2, 3, 4, 5)
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.batches
        good = isinstance(wanted, tuple) and wanted and len(set(wanted)) == len(wanted)
        if not good or not set(wanted) <= {1, 2, 3, 4, 5}:
            raise ValueError(f"batches is a tuple of different numbers from 1 to 5, e.g. (1, 2); got {wanted!r}")

    def read(self, folder: Path | None) -> Loaded:
        names = [f"data_batch_{number}" for number in self.batches]
        return Loaded(
            train=_with_living(read_batches([_find(folder, name) for name in names], BATCH)),
            test=_with_living(read_batches([_find(folder, "test_batch")], BATCH)),
            classes=CLASSES,
        )

    def rebuilt(self, loaded: Loaded) -> dict[str, str]:
        names = [f"data_batch_{number}.bin" for number in self.batches] if self.limit is None else []
        train = dict(zip(names, torch.arange(len(loaded.train)).split(BATCH), strict=False))
        return {
            **{name: _binary_md5(loaded.train[rows]) for name, rows in train.items()},
            "test_batch.bin": _binary_md5(loaded.test),
        }


def read_batches(paths: list[Path], count: int) -> Samples:
    """The batches in `paths`, `count` images each, decoded straight into their place in one array."""
    x = np.empty((len(paths), count, *SHAPE), np.uint8)
    y = np.empty((len(paths), count), np.uint8)
    readers = {".zip": _read_sheets, ".bin": read_records}
    for path, images, labels in zip(paths, x, y, strict=True):
        readers.get(path.suffix, read_pickled)(path, images, labels)
    return Samples(torch.from_numpy(x.reshape(-1, *SHAPE)), torch.from_numpy(y.reshape(-1)).long())


def _find(folder: Path | None, name: str) -> Path:
    return find(folder, *(place.format(name) for place in HOMES), origin=ORIGIN)


def _with_living(samples: Samples) -> Samples:
    # A damaged label is left for the check of the loaded set to name.
    return replace(samples, s={"living": LIVING[samples.y.clamp(max=len(CLASSES) - 1)]})


def _binary_md5(samples: Samples) -> str:
    records = torch.cat([samples.y.to(torch.uint8)[:, None], samples.x.flatten(1)], 1)
    return hashlib.md5(records.numpy().data).hexdigest()


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
