"""Pictures that do not decode: found before anything is learnt, and left out where a person asked for that."""

import os
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import torch

from .files import CorruptData
from .image_files import Listing, opened
from .room import decoders
from .streamed import pool

CHUNK = 256  # files that one message to another process is about
SHOWN = 3


class Sound(NamedTuple):
    """What decodes of a listing, and a sentence on what does not."""

    listing: Listing
    notes: tuple[str, ...] = ()


def sound(listing: Listing, skip: bool) -> Sound:
    """The listing as it is; with `skip`, every picture is decoded once and those that cannot be are left out."""
    if not skip:
        return Sound(listing)
    bad = _bad(listing.paths)
    if not bad:
        return Sound(listing)
    if len(bad) == len(listing.paths):
        raise CorruptData(listing.paths[0], f"nor is any other of the {len(bad)} pictures")
    names = ", ".join(str(listing.paths[row]) for row in bad[:SHOWN]) + (", …" if len(bad) > SHOWN else "")
    kept = torch.ones(len(listing.paths), dtype=torch.bool)
    kept[bad] = False
    told = f"{len(bad)} of {len(listing.paths)} pictures do not decode and were left out: {names}"
    return Sound(listing[kept.nonzero().flatten()], (told,))


def _bad(paths: Sequence[Path]) -> list[int]:
    starts, workers = range(0, len(paths), CHUNK), decoders()
    pieces = ([str(path) for path in paths[first : first + CHUNK]] for first in starts)
    try:
        many = workers and len(paths) > CHUNK
        found = pool(workers, os.getpid()).map(_those, pieces) if many else map(_those, pieces)
        return [first + row for first, rows in zip(starts, found, strict=True) for row in rows]
    except BrokenProcessPool:
        return [row for row, path in enumerate(paths) if _those([str(path)])]


def _those(paths: Sequence[str]) -> list[int]:
    return [row for row, path in enumerate(paths) if not _decodes(Path(path))]


def _decodes(path: Path) -> bool:
    try:
        with opened(path) as image:
            image.load()
    except CorruptData:
        return False
    return True
