"""What settings of the same guard say of each other, and which one to try beside the guard that leads.

One training and one attack say little of a setting, and those beside it are seldom far off. Of the same guard a
message of more bytes leaks no less and loses no more: where figures say otherwise it was chance, and both are given
their mean (`pooled`). For the same reason the way to a better setting leads up or down in bytes, which are known
before anything is trained (`step`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from ...core.search import Between, OneOf
from .trial import Tried

POINTS = 17  # values of a setting that are looked at
NEAR = log(1.25)  # logarithm of bytes: closer together there is nothing to be told apart
SAME = log(1.1)  # bytes that differ by less do not hang on the setting
RANGE = log(8.0)  # what the whole range of a setting counts as that does not change the bytes

Settings = Mapping[str, Any]
Sends = Callable[[Settings], float | None]  # bytes of a sample; None: it cannot be built


def family(guard: str) -> tuple[str, ...]:
    """The guards in a text, whatever their settings."""
    return tuple(re.findall(r"[^\s(,]+(?=\()", guard)) or (guard,)


# ------------------------------------------------------------------ what they say of each other
def pooled(tried: Sequence[Tried]) -> dict[str, Tried]:
    """By name, with leak and loss as those of the same family have it. What a linear reader alone has read and what
    the full attack has read are no measure of each other: leaks are pooled among those read equally far."""
    found = {one.guard: one for one in tried}
    for those in _apart(tried, lambda one: one.accuracy is not None and one.loss is not None, by_stage=False):
        for one, loss in zip(those, _falling([one.loss for one in those], those), strict=True):
            found[one.guard] = found[one.guard]._replace(loss=loss)
    for those in _apart(tried, lambda one: one.leak is not None and (one.whole or one.waits), by_stage=True):
        for one, less in zip(those, _falling([-(one.leak or 0.0) for one in those], those), strict=True):
            found[one.guard] = found[one.guard]._replace(leak=-less)
    return found


def _apart(tried: Sequence[Tried], known: Callable[[Tried], bool], by_stage: bool) -> list[list[Tried]]:
    """Families, each in the order of its bytes."""
    found: dict[tuple[Any, ...], list[Tried]] = {}
    for one in tried:
        if known(one) and one.bytes is not None:
            found.setdefault((*family(one.guard), one.stage if by_stage else ""), []).append(one)
    return [sorted(those, key=lambda one: one.bytes or 0.0) for those in found.values()]


def _falling(values: Sequence[Any], those: Sequence[Tried]) -> list[float]:
    """The nearest figures that fall from one to the next or stay (isotonic regression), by trainings."""
    runs: list[tuple[float, int, int]] = []  # a mean, of so many trainings, of so many settings
    for value, one in zip(values, those, strict=True):
        runs.append((value, one.trainings, 1))
        while len(runs) > 1 and runs[-2][0] < runs[-1][0]:
            (last, own, many), (before, theirs, others) = runs.pop(), runs.pop()
            runs.append(((last * own + before * theirs) / (own + theirs), own + theirs, many + others))
    return [mean for mean, _, many in runs for _ in range(many)]


# ------------------------------------------------------------------ beside the one that leads
@dataclass(frozen=True)
class _Gap:
    """Between the leader and what was tried next to it on one side, along one setting."""

    width: float
    side: int  # -1: fewer bytes, 1: more; 0: the setting does not change them
    middle: float
    line: Mapping[float, Settings]


def step(
    lead: Settings, space: Mapping[str, Between | OneOf], tried: Sequence[Settings], sends: Sends, less: bool
) -> Settings | None:
    """With one setting changed: to the middle of the widest gap around the leader. `less`: of a family tried once,
    that which sends less is looked at first, else that which sends more. None: all around it was tried."""
    gaps = [gap for name, one in space.items() for gap in _gaps(lead, name, one, tried, sends)]
    if len(tried) == 1:
        gaps = [gap for gap in gaps if gap.side == (-1 if less else 1)] or gaps
    for gap in sorted(gaps, key=lambda gap: -round(gap.width, 6)):
        left = {place: settings for place, settings in gap.line.items() if settings not in tried}
        if gap.width >= NEAR and left:
            return left[min(left, key=lambda place: abs(place - gap.middle))]
    return None


def _gaps(lead: Settings, name: str, one: Between | OneOf, tried: Sequence[Settings], sends: Sends) -> list[_Gap]:
    settings = [{**lead, name: value} for value in one.along(POINTS)]
    sizes = [size for each in [lead, *settings] if (size := sends(each))]
    by_bytes = bool(sizes) and log(max(sizes) / min(sizes)) > SAME

    def place(each: Settings) -> float | None:
        if by_bytes:
            size = sends(each)
            return log(size) if size else None
        return RANGE * one.place(each[name]) if sends(each) is not None else None

    here = place(lead)
    line = {at: each for each in settings if (at := place(each)) is not None}
    if here is None or not line:
        return []
    known = [at for each in tried if (at := place(each)) is not None]
    found = []
    for side in (-1, 1):
        end = (min if side < 0 else max)(line)
        beyond = [at for at in (*known, end) if (at - here) * side > 0 and (end - at) * side >= 0]
        if beyond:
            at = min(beyond, key=lambda at: abs(at - here))
            part = {place: each for place, each in line.items() if (place - here) * side > 0}
            found.append(_Gap(abs(at - here), side if by_bytes else 0, (at + here) / 2, part))
    return found
