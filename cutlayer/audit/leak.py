"""How much of the leak is left: a figure of a row beside the same figure of the open cut and of a blind guess."""

from collections.abc import Sequence
from typing import NamedTuple

from ..metrics.bootstrap import interval
from .floors import blind_guess
from .grades import LEAST_LEAK
from .rows import Floors, Row
from .uncertainty import draws

# The figures by which pictures are graded, each against the open cut's and the blind guess's same one.
STATISTICS = {"value": "ssim_either", "p90": "ssim_p90"}
IDENTIFIED = "identified"  # bounds their grade: whether pictures still tell which image they are of


MOST = 2.0  # where draws of the control hardly leak, shares of it grow without bound and say no more than this


def secret_of(row: Row) -> str:
    return row.get("secret", "images")


def leak_share(value: float, control: float, floor: float) -> float:
    """How much of what the unguarded cut gives away is still given away: 1 all of it, 0 no more than the floor."""
    return max(0.0, (value - floor) / max(1e-9, control - floor))


class Found(NamedTuple):
    """One statistic of one row beside the open cut's."""

    leak: float
    statistic: str
    row: Row
    control: Row
    reached: float
    open_cut: float
    floor: float

    @property
    def leak_interval(self) -> list[float] | None:
        """The row's and the control's samples are drawn each for itself; the floor is taken as it is. None: they
        were not kept."""
        if "sampled" not in self.row or "sampled" not in self.control:
            return None
        own, theirs = (draws(row)[self.statistic] for row in (self.row, self.control))
        shares = (own - self.floor).clamp_min(0) / (theirs - self.floor).clamp_min(1e-9)
        return [float(end) for end in interval(shares.clamp_max(MOST))]


def _figure(row: Row, statistic: str) -> float | None:
    named = {"p90": row.get("ssim_p90"), IDENTIFIED: row.get("identified")}
    return row["value"] if statistic == "value" else named[statistic]


def _floor(row: Row, floors: Floors, statistic: str) -> float:
    return blind_guess(floors, STATISTICS.get(statistic, statistic)) if secret_of(row) == "images" else row["chance"]


def recognised_by(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> Found | None:
    """The attacker whose pictures most often tell which image they are of. None: not measured, or no leak."""
    if not any(IDENTIFIED in marks for marks in floors.values()):
        return None
    found = found_by(rows, unguarded, floors, (IDENTIFIED,))
    leaks = [one for one in found if max(one.open_cut, one.reached) - one.floor >= LEAST_LEAK]
    return max(leaks, key=lambda one: one.leak, default=None)


def found_by(
    rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors, statistics: Sequence[str] = tuple(STATISTICS)
) -> list[Found]:
    """Under each seed and statistic the strongest row, against what the open cut gave away under the same seed.

    Where no control worked under that seed, the strongest of the others serves; where none did at all, the best that
    was seen of the open cut, and at least what was found behind the guard: an open cut gives away no less.
    """
    found = []
    for seed in dict.fromkeys(row.get("seed", 0) for row in rows):
        for statistic in statistics if secret_of(rows[0]) == "images" else ("value",):
            own = [row for row in rows if row.get("seed", 0) == seed and _figure(row, statistic) is not None]
            valid = [row for row in unguarded if row["valid"] and _figure(row, statistic) is not None]
            there = [row for row in valid if row.get("seed", 0) == seed] or valid
            if not own:
                continue
            row = max(own, key=lambda one: _figure(one, statistic) or 0.0)
            control = max(there or [row, *unguarded], key=lambda one: _figure(one, statistic) or 0.0)
            reached, open_cut = (_figure(one, statistic) or 0.0 for one in (row, control))
            floor = _floor(row, floors, statistic)
            leak = leak_share(reached, open_cut, floor)
            found.append(Found(leak, statistic, row, control, reached, open_cut, floor))
    return found
