"""Pickled dictionaries of plain arrays, read without running anything that is in them.

A pickle is a program. This reader knows the few calls by which numpy writes an array, does their work itself, and
refuses every other name, so that a file from a stranger is data or nothing.
"""

import pickle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .files import CorruptData

CORES = ("numpy.core", "numpy._core")  # before and since numpy 2


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in `path`: text keys; numbers, texts, bytes, lists of these, and numpy arrays as values."""
    try:
        with path.open("rb") as file:
            # Python 2 wrote these files: its strings are bytes.
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_text(key): value.array() if isinstance(value, _Array) else value for key, value in content.items()}
    except _Refused as error:
        raise CorruptData(
            path, f"the pickle asks for {error}, which no array needs; nothing in it was run"
        ) from error
    except OSError:
        raise
    # Damaged opcodes can end in any error; none of them comes from code of the file.
    except Exception as error:
        raise CorruptData(path, f"not a pickle of plain arrays ({error or type(error).__name__})") from error


class _Refused(Exception):
    """A name that is not on the list."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise _Refused(f"{module}.{name}")
        return KNOWN[module, name]


class _Dtype:
    """Stands for numpy.dtype: a plain number of a fixed width."""

    def __init__(self, kind: str | bytes, align: object = False, copy: object = False):
        self.kind, self.order = _text(kind), "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def numpy(self) -> np.dtype:
        if len(self.kind) != 2 or self.kind[0] not in "biuf" or self.order not in "|<>=":
            raise ValueError(f"an array of {self.kind!r} is not one of plain numbers")
        return np.dtype(self.order.replace("|", "=") + self.kind)


class _Array:
    """Stands for numpy.ndarray while the pickle is read."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.columns_first, self.raw = state

    def array(self) -> np.ndarray:
        dtype = self.dtype.numpy()
        if not isinstance(self.raw, bytes | bytearray) or len(self.raw) != prod(self.shape) * dtype.itemsize:
            raise ValueError(f"an array of shape {self.shape} has not the bytes it needs")
        return np.frombuffer(self.raw, dtype).reshape(self.shape, order="F" if self.columns_first else "C")


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    return _Array()  # empty, as numpy's own is; its content follows


def _frombuffer(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", raw))
    return array


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes in the older protocols.
    if encoding != "latin1":
        raise _Refused(f"the codec {encoding}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(f"{core}.multiarray", "_reconstruct"): _reconstruct for core in CORES},
    **{(f"{core}.numeric", "_frombuffer"): _frombuffer for core in CORES},
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
