"""The two official forms of CIFAR-10 and CIFAR-100: binary records and pickled batches."""

from pathlib import Path

import numpy as np

from .files import CorruptData
from .pickles import read_pickle

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32  # the red, the green and the blue plane


def read_records(path: Path, images: np.ndarray, labels: np.ndarray, at: int = 0, bytes_before: int = 1) -> None:
    """Fill `images` and `labels` from records of some label bytes, the wanted one `at` its place, and the pixels."""
    record = bytes_before + PIXELS
    if (size := path.stat().st_size) != len(images) * record:
        raise CorruptData(path, f"{len(images)} images take {len(images) * record} bytes, the file has {size}")
    records = np.memmap(path, np.uint8, mode="r", shape=(len(images), record))
    labels[:] = records[:, at]
    images[:] = records[:, bytes_before:].reshape(images.shape)


def read_pickled(path: Path, images: np.ndarray, labels: np.ndarray, key: str = "labels") -> None:
    """Fill `images` and `labels` from a pickled dictionary of `data` and a list of labels under `key`."""
    content = read_pickle(path)
    if missing := {"data", key} - content.keys():
        raise CorruptData(path, f"it has no {' and no '.join(sorted(missing))}, only {', '.join(sorted(content))}")
    data, numbers = content["data"], content[key]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(images), PIXELS):
        raise CorruptData(path, f"data should be {len(images)} rows of {PIXELS} bytes, it is {_describe(data)}")
    small = isinstance(numbers, list) and all(type(number) is int and 0 <= number < 256 for number in numbers)
    if not small or len(numbers) != len(labels):
        raise CorruptData(path, f"{key} should be {len(labels)} small numbers, it is {_describe(numbers)}")
    images[:] = data.reshape(images.shape)
    labels[:] = numbers


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}{f' of {len(value)}' if isinstance(value, list) else ''}"
