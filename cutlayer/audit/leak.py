"""How much of the leak is left: a figure of a row beside the same figure of the open cut and of a blind guess."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from ..metrics.bootstrap import interval
from .floors import blind_guess
from .grades import LEAST_LEAK
from .kinds import Kind, rebuilt
from .row_scores import of_column
from .rows import ColumnRow, Floors, Row
from .uncertainty import draws

IDENTIFIED = "identified"  # bounds the grade of pictures: whether they still tell which image they are of
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
    column: ColumnRow | None = None  # of records, where it is about a single one

    @property
    def interval(self) -> list[float] | None:
        """Of what was reached."""
        return self.column["interval"] if self.column else self.row.get("interval", {}).get(self.statistic)

    @property
    def leak_interval(self) -> list[float] | None:
        """The row's and the control's samples are drawn each for itself; the floor is taken as it is, and of a column
        the control as well. None: they were not kept."""
        if self.column is not None:
            return [min(MOST, leak_share(end, self.open_cut, self.floor)) for end in self.column["interval"]]
        if "sampled" not in self.row or "sampled" not in self.control:
            return None
        own, theirs = (draws(row)[self.statistic] for row in (self.row, self.control))
        shares = (own - self.floor).clamp_min(0) / (theirs - self.floor).clamp_min(1e-9)
        return [float(end) for end in interval(shares.clamp_max(MOST))]


def _figure(row: Row, statistic: str) -> float | None:
    kind, figures = rebuilt(row), cast(Mapping[str, float], row)
    return row["value"] if statistic == "value" or kind is None else figures.get(_mark(kind, statistic))


def _floor(row: Row, floors: Floors, statistic: str) -> float:
    kind = rebuilt(row)
    return row["chance"] if kind is None else blind_guess(floors, _mark(kind, statistic))


def _mark(kind: Kind, statistic: str) -> str:
    return kind.statistics.get(statistic, statistic)


def recognised_by(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> Found | None:
    """The attacker whose pictures most often tell which image they are of. None: not measured, or no leak."""
    if not any(IDENTIFIED in marks for marks in floors.values()):
        return None
    found = found_by(rows, unguarded, floors, (IDENTIFIED,))
    leaks = [one for one in found if max(one.open_cut, one.reached) - one.floor >= LEAST_LEAK]
    return max(leaks, key=lambda one: one.leak, default=None)


def found_by(
    rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors, statistics: Sequence[str] = ()
) -> list[Found]:
    """Under each seed and statistic the strongest row, against what the open cut gave away under the same seed.

    Where no control worked under that seed, the strongest of the others serves; where none did at all, the best that
    was seen of the open cut, and at least what was found behind the guard: an open cut gives away no less.
    """
    found = []
    for seed in dict.fromkeys(row.get("seed", 0) for row in rows):
        for statistic in (statistics or kind.statistics) if (kind := rebuilt(rows[0])) is not None else ("value",):
            own = [row for row in rows if row.get("seed", 0) == seed and _figure(row, statistic) is not None]
            valid = [row for row in unguarded if row["valid"] and _figure(row, statistic) is not None]
            there = [row for row in valid if row.get("seed", 0) == seed] or valid
            if not own:
                continue
            row = max(own, key=lambda one: _figure(one, statistic) or 0.0)
            control = max(there or [row, *unguarded], key=lambda one: _figure(one, statistic) or 0.0)
            reached, open_cut = (_figure(one, statistic) or 0.0 for one in (row, control))
            floor = _floor(row, floors, statistic)
            if statistic != "value" and max(reached, open_cut) - floor < LEAST_LEAK:
                continue  # neither tells more than a blind guess: there is nothing to take shares of
            told = open_cut if open_cut - floor >= LEAST_LEAK else max(open_cut, reached)
            leak = leak_share(reached, open_cut if statistic == "value" else told, floor)
            found.append(Found(leak, statistic, row, control, reached, open_cut, floor))
            if statistic == "value":
                found += best_column(own, control, floors)
    return found


def best_column(rows: Sequence[Row], control: Row, floors: Floors) -> list[Found]:
    """Of records, the column of which most of the leak is left: a mean over columns hides one that comes back whole.

    Only columns that are surely read better than by their own blind guess count; where there are none, nothing.
    """
    open_cut = {one["name"]: one["skill"] for one in control.get("columns", ())}
    found = []
    for row in rows:
        for one in row.get("columns", ()):
            floor, unguarded = blind_guess(floors, of_column(one["name"])), open_cut.get(one["name"], 0.0)
            if one["interval"][0] > floor and unguarded - floor >= LEAST_LEAK:
                leak = leak_share(one["skill"], unguarded, floor)
                found.append(Found(leak, "column", row, control, one["skill"], unguarded, floor, one))
    return [max(found, key=lambda one: one.leak)] if found else []
