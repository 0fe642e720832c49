"""What every data source shares: a name people can type, files found in one place, a checked result."""

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..core.seeds import derive
from ..core.spec import Spec
from .about import About
from .augment import AUGMENTATIONS
from .files import CorruptData, MissingData, find
from .holdout import Parts, carve, distinct, overlap, parts, refuse_one_class, stratified
from .samples import Loaded, Samples
from .scaling import Scale, on_scale

__all__ = [
    "About",
    "CorruptData",
    "Loaded",
    "MissingData",
    "Parts",
    "Samples",
    "Source",
    "carve",
    "distinct",
    "find",
    "overlap",
    "parts",
    "refuse_one_class",
    "stratified",
]


class Source(Spec, ABC):
    """Base of every source: a frozen dataclass (`repr=False`) with the field `limit: int | None = None`."""

    about: ClassVar[About]
    limit: int | None  # keep only so many training samples, class-balanced; the test set stays whole
    # How clients vary the images they learn from ("crop", "flip", "crop+flip"); sources of images have a field.
    augment: ClassVar[str] = ""
    mirrors: ClassVar[bool] = True  # whether the mirror image of a sample is one of the same class

    def __post_init__(self) -> None:
        if not hasattr(self, "limit"):
            raise ValueError(f"{type(self).__name__} needs the field `limit: int | None = None`, as every source")
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ValueError(f"limit is how many training samples to keep, at least 1; got {self.limit!r}")
        if self.augment not in AUGMENTATIONS:
            raise ValueError(f"augment is one of {', '.join(map(repr, AUGMENTATIONS))}; got {self.augment!r}")
        if "flip" in self.augment and not self.mirrors:
            raise ValueError(
                f"{type(self).__name__}: a mirror image is not of the same class, so these are moved only: "
                f"augment='crop' in place of {self.augment!r}"
            )

    @abstractmethod
    def read(self, folder: Path | None) -> Loaded:
        """The whole set from its files; see `find` for what `folder` means."""

    def has_labels(self, folder: Path | None) -> bool:
        """Whether somebody knows what is right. Where not, nothing is learnt: `predict` takes every row."""
        return True

    def unlabelled_rows(self, folder: Path | None, known: Loaded) -> Tensor:
        """x of every row in the order of the files, as measured; `known` is what the network has learnt from."""
        raise NotImplementedError

    def load(self, folder: Path | None = None, scale: Scale | None = None) -> Loaded:
        """The set, on the `scale` of a run that learnt from others; see `on_scale`."""
        loaded = on_scale(self.read(folder), scale)
        # A source with a file for each sample has left the others unread.
        if self.limit in (None, len(loaded.train)):
            return loaded
        return replace(loaded, train=loaded.train[self.keep(loaded.train.y)])

    def keep(self, y: Tensor) -> Tensor:
        """Which training rows, of these labels, `limit` keeps."""
        if self.limit is None:
            return torch.arange(len(y))
        if self.limit > len(y):
            raise ValueError(
                f"limit={self.limit} is more than the {len(y)} training samples of "
                f"{type(self).__name__}: lower it, or leave it out to take them all"
            )
        return stratified(y, self.limit, derive(0, "limit"))

    def rebuilt(self, loaded: Loaded) -> dict[str, str]:
        """The md5 of official files that the arrays give back, by name: a proof for forms nobody published."""
        return {}
