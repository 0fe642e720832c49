"""Whose turn it is. From which weights is a rule's business."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """Client `client` learns from its batches `first` to `last` (not included) of this epoch."""

    client: int
    first: int
    last: int


def turns(batches: Sequence[int], length: int) -> Iterator[Turn]:
    """One epoch of a relay: round robin, `length` batches a turn (0: all of them), until every batch was used.

    `length=1` is LightSplit's Alg. 1. Clients with less data drop out of the round earlier.
    """
    if length == 0:
        yield from (Turn(client, 0, count) for client, count in enumerate(batches) if count)
        return
    for first in range(0, max(batches, default=0), length):
        for client, count in enumerate(batches):
            if first < count:
                yield Turn(client, first, min(first + length, count))
