"""From what was typed to a plan: recipes, plan texts and options that change single fields."""

import ast
import runpy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

from ...core.expand import expanded
from ...core.spec import spec
from ...guards import Guard, NoGuard
from .fields import FIELDS, RENAMED
from .plan import Plan


def read_plan(text: str | None) -> Plan:
    """A plan from FILE.py:FUNCTION, from its text, or the defaults."""
    if text is None:
        return Plan()
    file, _, function = text.partition(".py:")
    if function or text.endswith((".py", ".py:")):
        return _recipe(Path(file.removesuffix(".py:").removesuffix(".py") + ".py"), function)
    _refuse_old_names(text)
    plan = spec(text, "plans")
    if not isinstance(plan, Plan):
        raise ValueError(f"{text!r} is not a plan: write FILE.py:FUNCTION or 'Plan(epochs=3)'")
    return plan


def _refuse_old_names(text: str) -> None:
    """A plan of version 0.1 is told what its fields are called now."""
    with suppress(SyntaxError):
        typed = ast.parse(text.strip(), mode="eval").body
        keywords = [one.arg for one in typed.keywords] if isinstance(typed, ast.Call) else []
        if old := [name for name in keywords if name in RENAMED]:
            new = ", ".join(f"{name} is now {RENAMED[name]}" for name in old)
            raise ValueError(f"{text!r} is a plan of cutlayer 0.1: {new}")


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


def change(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """`plan` with these fields changed; where a field takes a spec, its text."""
    return replace(plan, **{name: _value(name, typed) for name, typed in changes.items()})


def _value(name: str, typed: Any) -> Any:
    if name == "private_seed":  # no part of a plan's text
        return typed
    field = FIELDS[name]
    if name == "guard":
        return read_guard(typed)
    if field.type == list[str]:
        return tuple(spec(one, field.kind) if field.kind else one for one in typed)
    return spec(typed, field.kind) if field.kind else typed


def read_guard(text: str) -> Guard:
    return NoGuard() if text == "none" else spec(text, "guards")


def read_guards(texts: Iterable[str]) -> list[Guard]:
    """Guards as they are typed where there may be several: braces stand for one guard each."""
    return [read_guard(one) for text in texts for one in expanded(text)]
