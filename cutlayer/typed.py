"""From what was typed to a plan: recipes, plan texts and options that change single fields."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cli_options import PLAN_FIELDS
from .guards import Guard, NoGuard
from .plan import Plan
from .spec import spec


def read_plan(text: str | None) -> Plan:
    """A plan from FILE.py:FUNCTION, from its text, or the defaults."""
    if text is None:
        return Plan()
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _recipe(Path(file), function)
    plan = spec(text, "plans")
    if not isinstance(plan, Plan):
        raise ValueError(f"{text!r} is not a plan: write FILE.py:FUNCTION or 'Plan(epochs=3)'")
    return plan


def _recipe(file: Path, function: str) -> Plan:
    if not file.exists():
        raise FileNotFoundError(f"there is no recipe {file}")
    made = runpy.run_path(str(file))
    if function not in made:
        offers = [
            name
            for name, thing in made.items()
            if callable(thing) and getattr(thing, "__module__", "") == "<run_path>"
        ]
        raise ValueError(f"{file} has no function {function!r}; it has {', '.join(offers) or 'none'}")
    plan = made[function]()
    if not isinstance(plan, Plan):
        raise ValueError(f"{file}:{function} returned {type(plan).__name__}; a recipe returns a Plan")
    return plan


def change(plan: Plan, changes: dict[str, Any]) -> Plan:
    for name, value in changes.items():
        if name == "guard":
            changes[name] = read_guard(value)
        elif name == "frozen":
            changes[name] = tuple(value)
        elif PLAN_FIELDS[name]:
            changes[name] = spec(value, PLAN_FIELDS[name])
    return replace(plan, **changes)


def read_guard(text: str) -> Guard:
    return NoGuard() if text == "none" else spec(text, "guards")
