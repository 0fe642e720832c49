"""From what was typed to a plan: recipes, plan texts and options that change single fields."""

import runpy
from collections.abc import Iterable
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

from ...cli.options import PLAN_OPTIONS
from ...core.expand import expanded
from ...core.spec import spec
from ...guards import Guard, NoGuard
from .plan import Plan


def read_plan(text: str | None) -> Plan:
    """A plan from FILE.py:FUNCTION, from its text, or the defaults."""
    if text is None:
        return Plan()
    file, _, function = text.partition(".py:")
    if function or text.endswith((".py", ".py:")):
        return _recipe(Path(file.removesuffix(".py:").removesuffix(".py") + ".py"), function)
    plan = spec(text, "plans")
    if not isinstance(plan, Plan):
        raise ValueError(f"{text!r} is not a plan: write FILE.py:FUNCTION or 'Plan(epochs=3)'")
    return plan


def _recipe(file: Path, function: str) -> Plan:
    if not file.exists():
        raise FileNotFoundError(f"there is no recipe {file}")
    try:
        made = runpy.run_path(str(file))
    except (ImportError, SyntaxError) as error:
        raise ValueError(f"the recipe {file} cannot be run: {error}") from error
    own = {name for name, thing in made.items() if isfunction(thing) and thing.__module__ == "<run_path>"}
    offers = sorted(name for name in own if not name.startswith("_"))
    if function not in offers:
        asked = f"has no function {function!r}" if function else "needs a function's name behind it"
        raise ValueError(f"{file} {asked}; it has {', '.join(f'{file}:{name}' for name in offers) or 'none'}")
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
        elif name in ("watch", "server_watch"):
            changes[name] = tuple(spec(one, "detectors") for one in value)
        elif name in PLAN_OPTIONS and PLAN_OPTIONS[name][1]:
            changes[name] = spec(value, PLAN_OPTIONS[name][1])
    return replace(plan, **changes)


def read_guard(text: str) -> Guard:
    return NoGuard() if text == "none" else spec(text, "guards")


def read_guards(texts: Iterable[str]) -> list[Guard]:
    """Guards as they are typed where there may be several: braces stand for one guard each."""
    return [read_guard(one) for text in texts for one in expanded(text)]
