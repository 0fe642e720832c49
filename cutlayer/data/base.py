"""What every data source shares: a name people can type, files found in one place, a checked result."""

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from ..seeds import derive
from ..spec import Spec
from .files import CorruptData, MissingData, find
from .holdout import Parts, overlap, parts, stratified
from .samples import Loaded, Samples

__all__ = [
    "CorruptData",
    "Loaded",
    "MissingData",
    "Parts",
    "Samples",
    "Source",
    "find",
    "overlap",
    "parts",
    "stratified",
]


class Source(Spec, ABC):
    """Base of every source: a frozen dataclass (`repr=False`) with the field `limit: int | None = None`."""

    limit: int | None  # keep only so many training samples, class-balanced; the test set stays whole

    def __post_init__(self) -> None:
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ValueError(f"limit is how many training samples to keep, at least 1; got {self.limit!r}")

    @abstractmethod
    def read(self, folder: Path | None) -> Loaded:
        """The whole set from its files; see `find` for what `folder` means."""

    def load(self, folder: Path | None = None) -> Loaded:
        loaded = self.read(folder)
        if self.limit is None:
            return loaded
        if self.limit > len(loaded.train):
            raise ValueError(
                f"limit={self.limit} is more than the {len(loaded.train)} training samples of "
                f"{type(self).__name__}: lower it, or leave it out to take them all"
            )
        keep = stratified(loaded.train.y, self.limit, derive(0, "limit"))
        return replace(loaded, train=loaded.train[keep])
