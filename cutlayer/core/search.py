"""What may be tried for a setting, said on the class of a plug-in: `search = {"ratio": Between(2, 64)}`.

`cutlayer tune` draws settings from here, of plug-ins from outside the package as well. One that has nothing to be
searched says so: `search = Fixed("it has no setting")`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import exp, floor, log, log10
from typing import Any

DIGITS = 3  # of a number that is drawn: more would be noise in the text of a plan


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`, both included; whole where both are. `log`: twice as much is as far from once as
    once is from half."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"{self}: low is below high, and above 0 where the scale is logarithmic")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def rounded(self, value: float) -> float:
        """A drawn number as it stands in a plan."""
        if self.whole:
            return round(value)
        digits = DIGITS - 1 - floor(log10(abs(value))) if value else 0
        return min(self.high, max(self.low, round(value, digits)))

    def along(self, points: int) -> list[float]:
        """So many values from end to end, evenly; fewer where whole numbers coincide."""
        low, high = (log(self.low), log(self.high)) if self.log else (self.low, self.high)
        places = [low + (high - low) * step / (points - 1) for step in range(points)]
        return list(dict.fromkeys(self.rounded(exp(place) if self.log else place) for place in places))

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high, here = (log(one) if self.log else one for one in (self.low, self.high, value))
        return (here - low) / (high - low)

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, init=False)
class OneOf:
    """One of these values, in no order."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any):
        if len(set(values)) < 2:
            raise ValueError(f"a choice is between two values at least; got {values}")
        object.__setattr__(self, "values", values)

    def ends(self) -> tuple[Any, ...]:
        return self.values

    def along(self, points: int) -> list[Any]:
        return list(self.values)

    def place(self, value: Any) -> float:
        return self.values.index(value) / (len(self.values) - 1)

    def __contains__(self, value: Any) -> bool:
        return value in self.values


@dataclass(frozen=True)
class Fixed:
    """Nothing is searched here, and why."""

    why: str


Space = Mapping[str, Between | OneOf]
Search = Space | Fixed


def space_of(kind: type) -> Space:
    """What a class lets be searched; nothing where it says that it is fixed, or says nothing."""
    search = getattr(kind, "search", None)
    return {} if search is None or isinstance(search, Fixed) else search


def why_strange(kind: type) -> str | None:
    """What is wrong with what a class says of its own settings; None: nothing, or it says nothing."""
    search = getattr(kind, "search", None)
    if search is None:
        return None
    if isinstance(search, Fixed):
        return None if search.why else "Fixed says why nothing is searched"
    if not search:
        return "an empty search space: say Fixed('why')"
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if strange := sorted(set(search) - known):
        return f"it searches {', '.join(strange)}, and its settings are {', '.join(sorted(known))}"
    return None


def corners(kind: type) -> Iterator[dict[str, Any]]:
    """The first and the last value of every setting together, and each setting at each of its ends alone."""
    if not (space := space_of(kind)):
        return
    yield {name: one.ends()[0] for name, one in space.items()}
    yield {name: one.ends()[-1] for name, one in space.items()}
    for name, one in space.items():
        for end in one.ends():
            yield {name: end}
