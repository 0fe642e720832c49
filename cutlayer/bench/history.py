"""Measurements beside earlier ones: what became faster, and what slower."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LESS_IS_BETTER = ("(memory)", "(bytes)")  # how such a baseline ends: these ratios are sizes, not speeds
NOTICED = 0.05  # a change that repeated runs do not make by themselves, mostly


class Change(NamedTuple):
    """One entry now and then; `gain` above 1 is for the better."""

    name: str
    before: float
    now: float
    gain: float

    def __str__(self) -> str:
        word = "better" if self.gain > 1 + NOTICED else "worse" if self.gain < 1 - NOTICED else "as before"
        return f"{self.name:18} {self.before:6.2f} -> {self.now:6.2f}  {word}"


def read(path: Path) -> dict[str, Mapping[str, Any]]:
    """A bench.json by the names of its entries."""
    try:
        rows = json.loads(path.read_text())
        return {str(row["name"]): row for row in rows if float(row["ratio"]) >= 0}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no bench.json: give the file that an earlier `cutlayer bench` wrote") from error


def against(rows: Sequence[Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]]) -> list[Change]:
    """Entries that were measured both times against the same plain way."""
    changes = []
    for row in rows:
        then = earlier.get(row["name"])
        if then is not None and then["baseline"] == row["baseline"] and then["ratio"] > 0 < row["ratio"]:
            gain = row["ratio"] / then["ratio"]
            changes.append(
                Change(row["name"], then["ratio"], row["ratio"], 1 / gain if less_is_better(row) else gain)
            )
    return changes


def less_is_better(row: Mapping[str, Any]) -> bool:
    """Of sizes; but where the goal is a least ratio (memory of few pictures by that of many), more is better."""
    return str(row["baseline"]).endswith(LESS_IS_BETTER) and not str(row.get("goal", "")).startswith(">=")


def other_machine(rows: Sequence[Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]]) -> str:
    """What to bear in mind: ratios move with processors and versions of torch too. Empty on the same kind."""
    before, now = ({str(row.get("machine", "?")) for row in some} for some in (earlier.values(), rows))
    return "" if before == now else f"measured then on {', '.join(sorted(before))}, now on {', '.join(sorted(now))}"
