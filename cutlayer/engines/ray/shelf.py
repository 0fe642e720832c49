"""What clients have kept since their last turn, on disk: ten thousand take hardly more memory than ten."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..local.asleep import Asleep, Layout
from .crew import NEW


class _Place(NamedTuple):
    start: int
    room: int
    length: int
    layout: tuple[Any, ...]
    stamp: int


class Shelf:
    """One file without a name, gone with its process; of each client one state, under a stamp."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="cutlayer-")  # noqa: SIM115
        self._places: dict[int, _Place] = {}
        self._end, self._layout = 0, Layout()

    def put(self, client: int, stamp: int, state: Asleep) -> None:
        numbers, layout = state
        layout = self._layout.known.setdefault(layout, layout)  # alike for all clients: kept once
        before = self._places.get(client)
        if before is not None and len(numbers) <= before.room:
            start, room = before.start, before.room
        else:
            start, room = self._end, len(numbers)
            self._end += room
        os.pwrite(self._file.fileno(), numbers, start)
        self._places[client] = _Place(start, room, len(numbers), layout, stamp)

    def stamp(self, client: int) -> int:
        """NEW: it has kept nothing yet."""
        return self._places[client].stamp if client in self._places else NEW

    def get(self, client: int) -> Asleep | None:
        place = self._places.get(client)
        if place is None:
            return None
        return Asleep(os.pread(self._file.fileno(), place.length, place.start), place.layout)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._places))

    def clear(self) -> None:
        self._places.clear()
        self._end = 0
        self._file.truncate(0)
