"""The IDX files of the MNIST family, gzipped or not, read straight into one array."""

import gzip
import io
import zlib
from pathlib import Path

import numpy as np
import torch

from .files import CorruptData, find
from .samples import Samples

SIDE = 28
CHUNK = 1 << 20  # gzip hands out copies: small ones keep the peak at the size of the array


def forms(homes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The four files in each of `homes`, gzipped or not."""
    names = [f"{stem}-{kind}-ubyte" for stem in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(tuple(f"{home}/{name}{end}" for name in names) for home in homes for end in (".gz", ""))


def read_split(folder: Path | None, homes: tuple[str, ...], stem: str, count: int, origin: str) -> Samples:
    """`count` images and labels whose files start with `stem`, from the first of `homes` that has them."""

    def path(kind: str) -> Path:
        names = [f"{home}/{stem}-{kind}-ubyte{end}" for home in homes for end in (".gz", "")]
        return find(folder, *names, origin=origin)

    # Both are found before either is read, so a missing labels file is reported at once.
    images, labels = path("images-idx3"), path("labels-idx1")
    x = torch.from_numpy(read_idx(images, (count, SIDE, SIDE)))
    y = torch.from_numpy(read_idx(labels, (count,)))
    return Samples(x.unsqueeze(1), y.long())


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array in `path`, which must have this `shape`."""
    with path.open("rb") as raw:
        try:
            return _read(gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw, path, shape)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptData(path, f"the gzip stream is damaged or cut short ({error})") from error


def _read(file: io.BufferedIOBase, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    magic = bytes([0, 0, 8, len(shape)])  # 8 stands for unsigned bytes
    head = file.read(4 + 4 * len(shape))
    if head[:4] != magic:
        raise CorruptData(path, f"an IDX file of this kind starts with {magic.hex()}, this one {head[:4].hex()}")
    found = tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4))
    # Compared before anything is allocated: a damaged header may ask for terabytes.
    if found != shape:
        raise CorruptData(path, f"it should hold {_times(shape)} values, its header says {_times(found)}")
    array = np.empty(shape, np.uint8)
    flat, at = array.reshape(-1), 0
    while at < flat.size and (got := file.read(min(CHUNK, flat.size - at))):
        flat[at : at + len(got)] = np.frombuffer(got, np.uint8)
        at += len(got)
    # Reading past the end also makes gzip compare its checksum.
    if at < flat.size or file.read(1):
        raise CorruptData(path, f"it should hold {flat.size} values, it has {'fewer' if at < flat.size else 'more'}")
    return array


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
