"""What a benchmark says."""

from typing import NamedTuple


class Measured(NamedTuple):
    """`value` of our way, and `ratio`: how many times the plain way's speed it reaches."""

    value: float
    unit: str
    ratio: float
    baseline: str
    goal: str
