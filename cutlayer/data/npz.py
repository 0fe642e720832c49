"""Your own data: one NumPy archive of plain arrays, or a folder with a file for each."""

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.batch import NO_LABEL, PAD
from ..core.seeds import derive
from .base import About, CorruptData, Loaded, Samples, Source, carve, refuse_one_class
from .files import home, own_file
from .mapped import kept, mapped, present
from .rows import Rows

Arrays = Mapping[str, np.ndarray]
Reader = Callable[[Path, np.ndarray], Tensor]
LARGE = ("x", "y", "x_test", "y_test")


@dataclass(frozen=True, repr=False)
class Npz(Source):
    """Your own samples, any shape, from an .npz file: x, y, optionally x_test, y_test, s_NAME, identity.

    x is (N, H, W), (N, H, W, C), (N, C, H, W) or (N, features), in bytes or in floats from 0 to 1; with
    signals=True it is (N, channels, length), any floats, and with vocabulary=V (N, length), token ids below V.
    Features and signals far from 0 to 1 are standardised by the training rows. y is (N,), or (N, H, W) where every
    pixel has a class, or (N, length) of next tokens, of which padding (id 0) is learnt nowhere.
    `s_NAME` is a sensitive attribute, `identity` says whom a row belongs to; the rows of x_test have theirs in
    `s_NAME_test` and `identity_test`. Without x_test a tenth of every class is set aside. An array `classes`
    of strings names the labels. Pixels with the label `ignore` are neither learnt nor judged.
    A path may also be a folder of files x.npy, y.npy, …: images that do not fit into memory are read from there
    batch by batch.
    """

    about: ClassVar[About] = About(name="arrays of one's own", licence="yours", origin="Write it with numpy.savez.")

    path: str
    signals: bool = False  # x is (N, channels, length), not images without a channel
    vocabulary: int = 0  # of texts: how many token ids the tokenizer has; x is (N, length)
    ignore: int | None = None  # the label of pixels that have no class, often 255
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.vocabulary) is not int or self.vocabulary < 0 or self.vocabulary == 1:
            raise ValueError(f"vocabulary is how many token ids there are, e.g. 30522; got {self.vocabulary!r}")
        if self.signals and self.vocabulary:
            raise ValueError("x holds signals or token ids, not both: leave out signals=True or the vocabulary")

    def read(self, folder: Path | None) -> Loaded:
        path = _place(folder, self.path)
        _refuse_table(path)
        arrays = _Arrays(path)
        for wanted in ("x", "y") if "x_test" not in arrays else ("x", "y", "y_test"):
            if wanted not in arrays:
                hint = " (only `cutlayer predict` takes samples without labels)" if wanted == "y" else ""
                raise CorruptData(
                    path, f"it has no array {wanted!r}, only {', '.join(sorted(arrays)) or 'none'}{hint}"
                )
        reader = self._reader
        train = replace(_samples(arrays, "", reader, self.ignore), vocabulary=self.vocabulary)
        test = train
        if "x_test" in arrays:
            test = replace(_samples(arrays, "_test", reader, self.ignore), vocabulary=self.vocabulary)
        if self.vocabulary:
            train, test = _next_tokens(train), _next_tokens(test)
        if not isinstance(train.y, Rows):
            refuse_one_class(path, train.y, "y")
        # Checked before a test set is carved out, so that a complaint counts rows as the file does.
        if self.vocabulary and train.y.dim() == 2 and "classes" not in arrays:
            classes = tuple(map(str, range(self.vocabulary)))
        else:
            classes = _classes(path, arrays, torch.cat([present(train.y), present(test.y)]))
        loaded = Loaded(train, test, classes)
        if "x_test" in arrays:
            return loaded
        kept, held = carve(train.y, derive(0, "npz", "test"))
        return replace(loaded, train=train[kept], test=train[held])

    @property
    def _reader(self) -> Reader:
        return _signals if self.signals else _tokens if self.vocabulary else _images

    def has_labels(self, folder: Path | None) -> bool:
        """Whether there is an array y. A file that is no archive is complained of when it is read."""
        path = _place(folder, self.path)
        if path.is_dir():
            return (path / "y.npy").exists()
        if not zipfile.is_zipfile(path):
            return True
        with zipfile.ZipFile(path) as archive:
            return "y.npy" in archive.namelist()

    def unlabelled_rows(self, folder: Path | None, known: Loaded) -> Tensor:
        arrays = _Arrays(path := _place(folder, self.path))
        if "x" not in arrays:
            raise CorruptData(path, f"it has no array 'x', only {', '.join(sorted(arrays)) or 'none'}")
        x = arrays["x"]
        return self._reader(arrays.place("x"), np.asarray(x))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        # Pickled objects could run code; plain arrays cannot.
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an archive: write it with numpy.savez")
        with archive:
            return {name: _plain(archive, name) for name in archive.files}
    except _Objects:
        raise CorruptData(path, "it holds Python objects, which could run code: write arrays of numbers") from None
    except (EOFError, OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        why = "" if "pickle" in str(error) else f" ({error})"  # numpy's advice there is to run what is in the file
        raise CorruptData(path, f"not an .npz archive of plain arrays{why}") from error


class _Objects(Exception):
    """An array of Python objects."""


def _plain(archive: "np.lib.npyio.NpzFile", name: str) -> np.ndarray:
    try:
        return archive[name]
    except ValueError as error:
        if "pickle" in str(error):
            raise _Objects from error
        raise


def _refuse_table(path: Path) -> None:
    if path.suffix.lower() in (".csv", ".tsv"):
        raise ValueError(
            f"{path.absolute()} is a table of text, and Npz reads archives of numpy.savez: say "
            f"Table(path={str(path)!r}, target='COLUMN')"
        )


def _place(folder: Path | None, path: str) -> Path:
    for place in (Path(path).expanduser(), home(folder) / path):
        if place.is_dir():
            return place
    return own_file(folder, path)


class _Arrays(dict[str, np.ndarray]):
    """Arrays by name; those of a folder lie in a file each."""

    def __init__(self, path: Path):
        super().__init__(_files(path) if path.is_dir() else _arrays(path))
        self.path = path

    def place(self, name: str) -> Path:
        return self.path / f"{name}.npy" if self.path.is_dir() else self.path

    def numbers(self, name: str) -> Tensor:
        return _numbers(self.place(name), name, self[name])


def _files(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a folder; of those that may be large nothing is read yet."""
    found = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            found[path.stem] = mapped(path) if path.stem in LARGE else np.load(path, allow_pickle=False)
        except (EOFError, OSError, ValueError) as error:
            why = "Python objects, which could run code" if "Python object" in str(error) else str(error)
            raise CorruptData(path, f"not a .npy file of a plain array ({why})") from error
    return found


def _samples(arrays: "_Arrays", end: str, reader: Reader, ignore: int | None) -> Samples:
    if len(arrays[f"x{end}"]) != len(arrays[f"y{end}"]):
        rows = f"x{end} has {len(arrays[f'x{end}'])} rows and y{end} has {len(arrays[f'y{end}'])}"
        raise CorruptData(arrays.path, f"{rows}: there is one label for every sample")
    attributes = {name for name in arrays if name.startswith("s_") and name.endswith("_test") == bool(end)}
    x, y = arrays[f"x{end}"], arrays[f"y{end}"]
    pictures, maps = reader is _images and x.ndim > 2, y.ndim == 3
    labels = partial(_labels, name=f"y{end}", ignore=ignore)
    place = arrays.place
    return Samples(
        kept(place(f"x{end}"), x, reader, x.itemsize) if pictures else reader(place(f"x{end}"), np.asarray(x)),
        kept(place(f"y{end}"), y, labels, 8) if maps else labels(place(f"y{end}"), np.asarray(y)),
        {name[2:].removesuffix("_test"): arrays.numbers(name) for name in sorted(attributes)},
        arrays.numbers(f"identity{end}") if f"identity{end}" in arrays else None,
        places=torch.arange(len(x)),
    )


def _signals(path: Path, x: np.ndarray) -> Tensor:
    if x.ndim != 3 or x.dtype.kind not in "iuf":
        raise CorruptData(path, f"signals are numbers of shape (N, channels, length); x is {x.dtype} {x.shape}")
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def _tokens(path: Path, x: np.ndarray) -> Tensor:
    whole = x.dtype.kind in "iu" or (x.dtype.kind == "f" and np.isfinite(x).all() and (x == x.round()).all())
    if x.ndim != 2 or not whole or not x.size or x.min() < 0:
        raise CorruptData(
            path, f"token ids are whole numbers from 0 up of shape (N, length); x is {x.dtype} {x.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64))


def _images(path: Path, x: np.ndarray) -> Tensor:
    if x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8:
        raise ValueError(
            f"x of {path.absolute()} holds whole numbers ({x.dtype}), {x.shape[1]} a row: if they are token ids, say "
            f"how many the tokenizer has, e.g. vocabulary={int(x.max(initial=1)) + 1}; if they are amounts, "
            "write them as floats: x.astype('float32')"
        )
    if x.dtype.kind == "f":
        x = x.astype(np.float32, copy=False)
    elif x.dtype == np.uint8 or (x.dtype.kind in "iu" and not ((x < 0) | (x > 255)).any()):
        x = x.astype(np.uint8, copy=False)
    else:
        raise CorruptData(path, f"images must be whole numbers 0..255 or floats 0..1; found other {x.dtype}")
    if x.ndim not in (2, 3, 4):
        raise CorruptData(path, f"x must be (N, H, W), (N, H, W, C), (N, C, H, W) or (N, features); it is {x.shape}")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x))


def _labels(path: Path, values: np.ndarray, name: str, ignore: int | None) -> Tensor:
    y = _numbers(path, name, values)
    if ignore is None:
        return y
    if y.dim() != 3:
        raise ValueError(f"ignore={ignore} is a label of pixels, and {name} of {path} has one a sample: leave it out")
    return y.masked_fill(y == ignore, NO_LABEL)


def _next_tokens(samples: Samples) -> Samples:
    """The same, where labels are the next token of each place: padding is none."""
    y = samples.y
    return samples if y.dim() != 2 else replace(samples, y=y.masked_fill(y == PAD, NO_LABEL))


def _numbers(path: Path, name: str, values: np.ndarray) -> Tensor:
    if values.dtype.kind not in "biuf":
        fix = ": number the classes from 0 and name them in an array `classes`" if name.startswith("y") else ""
        raise CorruptData(path, f"{name} must hold numbers, not {values.dtype}{fix}")
    # What is not whole stays as it is, for the check of the loaded set to name the row.
    whole = values.dtype.kind != "f" or (np.isfinite(values).all() and (values == values.round()).all())
    return torch.from_numpy(values.astype(np.int64 if whole else np.float32))


def _classes(path: Path, arrays: Arrays, y: Tensor) -> tuple[str, ...]:
    """Those that are named, or as many as there are labels in `y`."""
    if "classes" in arrays:
        return tuple(str(name) for name in arrays["classes"].tolist())
    present = y[y != NO_LABEL].unique()
    # One stray label would otherwise invent thousands of classes. Labels that are wrong in themselves
    # (negative, fractional) are left to the check of the loaded set.
    gap = (present != torch.arange(len(present))).nonzero()
    if len(gap) and not y.is_floating_point() and present[0] >= 0:
        raise ValueError(
            f"labels of {path} must run from 0 without a gap, but {int(gap[0])} is missing and "
            f"{int(present[-1])} is there: number them again, or name every class in an array `classes`"
        )
    return tuple(map(str, range(len(present))))
