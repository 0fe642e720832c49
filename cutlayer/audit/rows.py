"""What the parts of an audit hand to each other: events, scores, and the names of rows."""

from dataclasses import dataclass
from typing import Any

from ..guards import Guard, NoGuard


@dataclass(frozen=True)
class Event:
    """What an audit is doing, for whoever shows progress."""

    what: str
    done: float  # share of the whole audit


Row = dict[str, Any]


def shown(guard: Guard) -> str:
    return "none" if guard == NoGuard() else repr(guard)


def picture_key(row: Row) -> str:
    return f"{row['guard']} | {row['attack']}"


Scores = dict[str, float | None]
