"""Slices of large tables: `make test` runs the slice, `make campaign` runs the rest of the table."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest


def rotation(things: Iterable[Any], *axes: Sequence[Any], kind: Callable[[Any], Hashable] = type) -> list[tuple]:
    """Cases (thing, a value of each axis): each thing at least once, each kind of thing with each value of each axis.

    Where a kind starts on each axis is drawn once and for all, so that values of different axes meet as well.
    """
    kinds: dict[Hashable, list[Any]] = {}
    for thing in things:
        kinds.setdefault(kind(thing), []).append(thing)
    draw, cases = Random(0), []
    for same in kinds.values():
        starts = [draw.randrange(len(axis)) for axis in axes]
        for turn in range(max(map(len, (same, *axes)))):
            values = (axis[(start + turn) % len(axis)] for axis, start in zip(axes, starts, strict=True))
            cases.append((same[turn % len(same)], *values))
    return cases


def and_the_rest(chosen: list[tuple], things: Iterable[Any], *axes: Sequence[Any]) -> list[Any]:
    """The whole table as parameters of one test: what is not among `chosen` is left to the campaign."""
    return [
        pytest.param(*case, marks=() if case in chosen else pytest.mark.campaign) for case in product(things, *axes)
    ]
