"""What a benchmark says, and whether that is what it should be."""

import re
from typing import NamedTuple

RECORDED = "recorded"  # the goal of what is only written down
_BOUND = re.compile(r"(>=|<=|<) (\d+(?:\.\d+)?)( \S+)?")
_BETWEEN = re.compile(r"(\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)")


class Measured(NamedTuple):
    """`value` of our way, and `ratio`: how many times the plain way's speed it reaches."""

    value: float
    unit: str
    ratio: float
    baseline: str
    goal: str


def met(value: float, ratio: float, goal: str) -> bool | None:
    """Whether a goal is reached; None: there is none.

    ">= 0.9" and "0.8 to 1.2" are about the ratio, "<= 5 kB" with a unit is about the value; "<= 1.5, <= 10 s": both.
    """
    if goal == RECORDED:
        return None
    return all(_holds(value, ratio, part) for part in goal.split(", "))


def _holds(value: float, ratio: float, goal: str) -> bool:
    if between := _BETWEEN.fullmatch(goal):
        return float(between[1]) <= ratio <= float(between[2])
    bound = _BOUND.fullmatch(goal)
    if bound is None:
        raise ValueError(f"a goal is {RECORDED!r}, '>= 0.9', '0.8 to 1.2' or '<= 5 kB'; got {goal!r}")
    found, limit = value if bound[3] else ratio, float(bound[2])
    return {">=": found >= limit, "<=": found <= limit, "<": found < limit}[bound[1]]
