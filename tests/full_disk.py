"""A disk that is full from its n-th operation on, for all that a run writes, until somebody makes room."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from cutlayer.core import files
from cutlayer.engines import books
from cutlayer.training import checkpoint

NEEDS_ROOM = ("open", "write", "fsync", "fdatasync", "replace", "link", "mkdir")


class FullDisk:
    """Stands in for `os` where files are written. A write that meets the end of the disk is half made."""

    def __init__(self, room: int, where: str = ""):
        """`room`: operations that still find room; only those on files whose path has `where` in it count."""
        self.room, self.where, self.done = room, re.compile(where), 0
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in NEEDS_ROOM:
            return real

        def tried(first: Any, *rest: Any, **named: Any) -> Any:
            path = self._paths.get(first, "") if isinstance(first, int) else str(first)
            new = name != "open" or rest[0] & os.O_CREAT
            if new and self.where.search(path) and not self._has_room():
                if name == "write":
                    real(first, rest[0][: len(rest[0]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            made = real(first, *rest, **named)
            if name == "open":
                self._paths[made] = path  # over that of a closed file of the same number
            return made

        return tried

    def save_file(self, tensors: dict, path: Any, metadata: dict | None = None) -> None:
        """As safetensors does: the system's number is in the text alone."""
        if self.where.search(str(path)) and not self._has_room():
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        _SAVE(tensors, path, metadata=metadata)

    def _has_room(self) -> bool:
        self.done += 1
        return self.done <= self.room


_SAVE = safetensors.torch.save_file


def use(disk: Any, save_file: Any) -> None:
    """For everything that a party writes."""
    for module in (files, books, checkpoint):
        module.os = disk
    safetensors.torch.save_file = save_file


@contextmanager
def full_disk(room: int, where: str = "") -> Iterator[FullDisk]:
    disk = FullDisk(room, where)
    use(disk, disk.save_file)
    try:
        yield disk
    finally:
        use(os, _SAVE)
