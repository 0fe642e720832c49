"""Samples in memory or on disk: images as bytes, whole-number labels, and what else is known about each row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.batch import NO_LABEL
from ..core.columns import Column, features
from .paths import Paths
from .rows import Rows, at, soon

if TYPE_CHECKING:
    from .scaling import Scale
    from .tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows that belong together. Images stay uint8 in memory; `images` converts the rows of one batch.

    Images, and labels of pixels, may be `Rows` on disk: they have the shape and the indexing of a tensor, no more.
    """

    x: Tensor  # uint8 or float32; N,C,H,W or N,features; token ids of texts are int64, N,length
    y: Tensor  # int64; N, or N,H,W where every pixel has a class; N,length where it is the next token
    s: Mapping[str, Tensor] = field(default_factory=dict)  # sensitive attributes by name
    identity: Tensor | None = None  # who each row is about or belongs to
    columns: tuple[Column, ...] = ()  # of a table whose columns have names
    vocabulary: int = 0  # of texts: how many token ids there are
    tokenizer: "Tokenizer | None" = None  # of texts: what their ids stand for, where it is known
    places: Tensor | Paths | None = None  # where each row stands: a number in its file, or a file of its own

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> "Samples":
        return Samples(
            at(self.x, index),
            at(self.y, index),
            {name: values[index] for name, values in self.s.items()},
            None if self.identity is None else self.identity[index],
            self.columns,
            self.vocabulary,
            self.tokenizer,
            self._places(index),
        )

    def images(self, index: Tensor | None = None) -> Tensor:
        """The rows as a network reads them: bytes become floats in [0, 1]; floats and token ids stay as they are."""
        whole = self.x[:] if isinstance(self.x, Rows) and index is None else self.x
        x = whole if index is None else whole[index]
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x

    def _places(self, index: Tensor) -> Tensor | Paths | None:
        if isinstance(self.places, Paths):
            return self.places.at(index.cpu())
        return None if self.places is None else self.places[index.cpu()]

    @property
    def on_disk(self) -> bool:
        return isinstance(self.x, Rows)

    def soon(self, batches: Sequence[Tensor]) -> None:
        """These rows will be asked for next; those on disk are made ready."""
        soon(self.x, batches)
        soon(self.y, batches)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A whole data set, checked once here so that nothing behind it has to check again."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    scale: "Scale | None" = None  # that x was put on
    notes: tuple[str, ...] = ()  # what a person should know of how it was read: sentences

    @property
    def vocabulary(self) -> int:
        return self.train.vocabulary

    @property
    def tokenizer(self) -> "Tokenizer | None":
        return self.train.tokenizer

    def __post_init__(self) -> None:
        for name, samples in (("train", self.train), ("test", self.test)):
            _check_lengths(name, samples)
            _check_labels(name, samples, len(self.classes))
            _check_values(name, samples)
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise ValueError(
                f"train and test must have one shape; train rows are {_shape(self.train.x)}, "
                f"test rows {_shape(self.test.x)}"
            )
        if self.train.y.dim() != self.test.y.dim():
            raise ValueError("train and test must have labels of one kind: one number a sample, or one a pixel")
        named = self.train.columns
        if named and self.train.x.shape[1:] != (features(named),):
            raise ValueError(
                f"the columns describe rows of {features(named)} features; the rows are {_shape(self.train.x)}"
            )


def _check_lengths(name: str, samples: Samples) -> None:
    if not len(samples):
        raise ValueError(f"the {name} set is empty: it needs at least one sample")
    columns = {"labels": samples.y, **{f"values of attribute {key!r}": v for key, v in samples.s.items()}}
    if samples.identity is not None:
        columns["identities"] = samples.identity
    for what, values in columns.items():
        if what == "labels" and values.dim() == 3 and samples.x.dim() == 4:
            if values.shape[1:] != samples.x.shape[2:]:
                raise ValueError(
                    f"{name} labels must be one number a sample or one a pixel; the images are {_shape(samples.x)}, "
                    f"their labels {_shape(values)}"
                )
        elif what == "labels" and samples.vocabulary and values.shape == samples.x.shape:
            continue  # the next token of every place
        elif values.dim() != 1:
            fix = ": of one-hot rows take y.argmax(1)" if what == "labels" and values.dim() == 2 else ""
            raise ValueError(f"{name} {what} must be one number a sample; got the shape {tuple(values.shape)}{fix}")
        if len(values) != len(samples):
            raise ValueError(f"the {name} set has {len(samples)} images but {len(values)} {what}")


def _check_labels(name: str, samples: Samples, classes: int) -> None:
    y = samples.y
    if isinstance(y, Rows):  # they are checked as they are read
        return
    if y.dim() == 3 or (samples.vocabulary and y.dim() == 2):
        y = y.masked_fill(y == NO_LABEL, 0)
    if y.is_floating_point() and (row := _first(y != y.round())) is not None:
        raise ValueError(f"label {_at(y, y != y.round())} at {name} row {row} is not a whole number")
    if y.dtype != torch.int64:
        raise ValueError(f"{name} labels must be int64; got {y.dtype}: convert them with y.long()")
    if (row := _first((y < 0) | (y >= classes))) is not None:
        raise ValueError(
            f"label {_at(y, (y < 0) | (y >= classes))} at {name} row {row} is out of range: "
            f"the set has {classes} classes 0..{classes - 1}"
        )


def _check_values(name: str, samples: Samples) -> None:
    columns = {"x": samples.x, **{f"attribute {key!r}": values for key, values in samples.s.items()}}
    for what, values in columns.items():
        if isinstance(values, Rows):
            continue
        # aminmax hands NaN on, so it tests every value without a mask as large as the set.
        if values.is_floating_point() and not all(torch.isfinite(end) for end in values.aminmax()):
            row = _first(~torch.isfinite(values.flatten(1) if values.dim() > 1 else values[:, None]).all(1))
            raise ValueError(f"{what} at {name} row {row} holds NaN or Inf: repair or drop that row")
    x = samples.x
    if samples.vocabulary:
        _check_ids(name, x, samples.vocabulary)
        return
    if x.dtype not in (torch.uint8, torch.float32) or x.dim() not in (2, 3, 4):
        raise ValueError(
            f"{name} x must be uint8 or float32 of shape (N, C, H, W), (N, C, length) or (N, features); "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )
    if x.dim() == 4 and x.is_floating_point() and not isinstance(x, Rows) and (x.min() < 0 or x.max() > 1):
        raise ValueError(
            f"{name} images given as floats must lie in [0, 1]; found {x.min():.3g} to {x.max():.3g}: "
            "rescale them, or give bytes (uint8); signals of (N, channels, length) are Npz(..., signals=True)"
        )


def _check_ids(name: str, x: Tensor, vocabulary: int) -> None:
    if x.dtype != torch.int64 or x.dim() != 2:
        raise ValueError(f"{name} texts must be int64 token ids of shape (N, length); got {x.dtype} {tuple(x.shape)}")
    wrong = ((x < 0) | (x >= vocabulary)).any(1)
    if (row := _first(wrong)) is not None:
        low, high = (int(end) for end in x[row].aminmax())
        raise ValueError(
            f"token ids run from 0 to {vocabulary - 1}; those of {name} row {row} from {low} to {high}: was another "
            "tokenizer used?"
        )


def _at(y: Tensor, wrong: Tensor) -> float:
    """The first of the labels that are wrong."""
    return float(y[wrong][0]) if y.is_floating_point() else int(y[wrong][0])


def _first(wrong: Tensor) -> int | None:
    rows = wrong.nonzero()
    return int(rows[0, 0]) if len(rows) else None


def _shape(x: Tensor) -> str:
    return "x".join(map(str, x.shape[1:]))
