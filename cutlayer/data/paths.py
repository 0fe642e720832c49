"""Many paths in little memory: a million of them as objects would take more room than a cache of images."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import Tensor


class Paths(Sequence[Path]):
    """The text of all paths in one piece, and where each ends."""

    def __init__(self, text: bytes, ends: np.ndarray, which: Tensor | None = None):
        self._text, self._ends = text, ends
        self.which = torch.arange(len(ends)) if which is None else which

    @classmethod
    def of(cls, paths: Iterable[Path | str]) -> "Paths":
        if isinstance(paths, Paths):
            return paths
        text, ends = bytearray(), []
        for path in paths:
            text += str(path).encode(errors="surrogateescape")
            ends.append(len(text))
        return cls(bytes(text), np.asarray(ends, np.int64))

    @classmethod
    def joined(cls, lists: "Sequence[Paths]") -> "Paths":
        """Those of several, none of which was picked from."""
        starts = np.cumsum([0, *(len(one._text) for one in lists)])
        ends = [one._ends + start for one, start in zip(lists, starts, strict=False)]
        return cls(b"".join(one._text for one in lists), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> "Paths": ...
    def __getitem__(self, place: int | slice) -> "Path | Paths":
        if isinstance(place, slice):
            return Paths(self._text, self._ends, self.which[place])
        number = int(self.which[place])
        first = int(self._ends[number - 1]) if number else 0
        return Path(self._text[first : int(self._ends[number])].decode(errors="surrogateescape"))

    def at(self, rows: Tensor) -> "Paths":
        return Paths(self._text, self._ends, self.which[rows])
