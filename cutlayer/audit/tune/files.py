"""A tune as files: tune.json, tune.csv, the front as a figure, and the plan that was chosen, ready to be run."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.files import write_together
from ...guards import Guard
from ...training.plan.plan import Plan
from .budget import Budget, option
from .figure import figure
from .front import Checked, chosen, front, meets, what_binds, why_chosen
from .run import Search
from .trial import Tried

SCHEMA = 1
PLAN = "plan.py"


def as_data(
    plan: Plan, budget: Budget, found: Search, checked: Sequence[Checked], seeds: dict[str, Any], command: str
) -> dict[str, Any]:
    """What tune.json holds."""
    kept = [one for one in checked if not one.missed]
    meeting = chosen(found.tried, budget)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "plan": repr(plan),
        "budget": budget.limits(),
        "seeds": seeds,
        "open_cut": {name: getattr(found.open_cut, name) for name in ("accuracy", "bytes", "floors")},
        "tried": [one._asdict() for one in found.tried],
        "failed": [one.guard for one in found.tried if one.failed],
        "front": [one.guard for one in front(found.tried)],
        "chosen": kept[0].guard if kept else None,
        "checked": [one.as_dict() for one in checked],
        "binds": [] if kept else _why_none(found.tried, budget, meeting, checked),
    }


def _why_none(
    tried: Sequence[Tried], budget: Budget, meeting: Sequence[Tried], checked: Sequence[Checked]
) -> list[str]:
    if not meeting:
        return what_binds(tried, budget)
    return [
        f"{one.guard} kept to its budgets in the search and not under other seeds and all attacks: "
        + ", ".join(f"{option(name)} {getattr(one, name):.4g}" for name in one.missed)
        for one in checked
    ]


def write(data: dict[str, Any], plan: Plan, guard: Guard | None, found: Search, budget: Budget, folder: Path) -> None:
    drawn, vector = figure(found, budget, data["chosen"])
    files = {
        "tune.json": json.dumps(data, indent=1).encode(),
        "tune.csv": table(found.tried, budget),
        "tune.png": drawn,
        "tune.svg": vector,
    }
    if guard is not None:
        files[PLAN] = recipe(plan.with_guard(guard), data).encode()
    write_together(folder, files)


def summary(data: dict[str, Any], found: Search, budget: Budget) -> list[str]:
    """What a person reads at the end: how far the guards came, what the last word found, what was chosen and why."""
    counts = Counter(_END[one.stage] for one in found.tried)
    came = ", ".join(f"{counts[end]} {end}" for end in _END.values() if counts[end])
    said = [f"{len(found.tried)} guards: {came}; {len(data['front'])} on the front"]
    seeds = ", ".join(map(str, data["seeds"]["check"]))
    for one in data["checked"]:
        limits = [_against(name, one[name], limit) for name, limit in budget.limits().items()]
        rest = [_against(name, one[name], None) for name in ("leak", "loss", "bytes") if name not in budget.limits()]
        kept = "keeps to the budget" if not one["missed"] else f"misses {', '.join(map(option, one['missed']))}"
        said.append(f"{one['guard']} {kept} under every attack and seeds {seeds}: {', '.join([*limits, *rest])}")
    said += [f"{one.guard}: {one.why}" for one in found.tried if one.failed]
    if data["chosen"] is not None:
        pick = next(one for one in found.tried if one.guard == data["chosen"])
        said.append(f"chosen: {pick.guard}; {why_chosen(pick, found.tried, budget)}")
    return said + list(data["binds"])


_END = {
    "fit": "do not fit",
    "cost": "cost too much",
    "training": "ruled out by their training",
    "reader": "read by cheap readers alone",
    "attack": "read by the full attack",
}  # by the last stage that a guard reached


def _against(name: str, value: float | None, limit: float | None) -> str:
    figure = {"leak": ".2f", "bytes": ",.1f", "loss": ".1f"}.get(name, ",")
    shown = "unknown" if value is None else format(value, figure)
    return f"{name.replace('_', ' ')} {shown}" + ("" if limit is None else f" of {limit:,g}")


def table(tried: Sequence[Tried], budget: Budget) -> bytes:
    """tune.csv: a line a guard."""
    text, best = io.StringIO(), {one.guard for one in front(tried)}
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*Tried._fields, "front", "meets"])
    for one in tried:
        writer.writerow(
            ["" if value is None else value for value in one]
            + [str(one.guard in best).lower(), str(meets(one, budget)).lower()]
        )
    return text.getvalue().encode()


def recipe(plan: Plan, data: dict[str, Any]) -> str:
    """A plan as a file that any command takes."""
    checked = next(one for one in data["checked"] if one["guard"] == data["chosen"])
    asked = ", ".join(f"{option(name)} {limit:g}" for name, limit in data["budget"].items())
    said = (
        f"under seeds {', '.join(map(str, data['seeds']['check']))}\nit leaves {checked['leak']:.2f} of the leak, "
        f"loses {checked['loss']:.1f} points and sends {checked['bytes']:.1f} bytes a sample"
    )
    return f'''"""What `cutlayer tune` chose for {asked}; {said}.

    cutlayer train {PLAN}:plan
"""

from cutlayer import Plan, spec


def plan() -> Plan:
    return spec({repr(plan)!r}, "plans")
'''
