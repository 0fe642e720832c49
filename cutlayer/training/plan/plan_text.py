"""From what was typed to a plan: recipes, plan texts and options that change single fields."""

import ast
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

from ...core.errors import USER_ERRORS
from ...core.expand import expanded
from ...core.outside import load_file, load_module
from ...core.spec import parsed, spec
from ...guards import Guard, NoGuard
from ...nets.lora import LoRA
from .fields import FIELDS, RENAMED
from .plan import Plan
from .pretrained import read_start


def read_plan(text: str | None) -> Plan:
    """A plan from FILE.py:FUNCTION, from its text, or the defaults."""
    if text is None:
        return Plan()
    if found := _RECIPE.fullmatch(text):
        return _recipe(found["place"] or found["module"], found["function"] or found["in_module"] or "")
    refuse_old_names(text)
    plan = spec(text, "plans")
    if not isinstance(plan, Plan):
        raise ValueError(f"{text!r} is not a plan: write FILE.py:FUNCTION or 'Plan(epochs=3)'")
    return plan


# A file, or a module with a function's name behind it. What has parentheses is a spec.
_RECIPE = re.compile(r"(?P<place>[^()]*\.py):?(?P<function>\w*)|(?P<module>[^\W\d][\w.]*):(?P<in_module>\w+)")


def refuse_old_names(text: str) -> None:
    """A plan from before version 0.2 is told what its fields are called now."""
    old: list[str] = []
    with suppress(ValueError):
        typed, _ = parsed(text)
        keywords = [one.arg for one in typed.keywords] if isinstance(typed, ast.Call) else []
        old = [name for name in keywords if name and name in RENAMED]
    if old:
        new = ", ".join(f"{name} is now {RENAMED[name]}" for name in old)
        raise ValueError(f"{text!r} is a plan of cutlayer 0.1: {new}")


def _recipe(place: str, function: str) -> Plan:
    """Imported as a module is: what a recipe defines can be handed to other processes."""
    if place.endswith(".py") and not Path(place).expanduser().exists():
        looked = Path(place).expanduser().resolve().parent
        raise FileNotFoundError(
            f"there is no recipe {place} (looked in {looked}); `cutlayer new` lists and copies those of the package"
        )
    made = load_file(place) if place.endswith(".py") else load_module(place)
    own = {name for name, thing in vars(made).items() if isfunction(thing) and thing.__module__ == made.__name__}
    offers = sorted(name for name in own if not name.startswith("_"))
    if function not in offers:
        asked = f"has no function {function!r}" if function else "needs a function's name behind it"
        there = ", ".join(f"{place}:{name}" for name in offers) or "none: write def plan(): return Plan(...)"
        raise ValueError(f"{place} {asked}; it has {there}")
    try:
        plan = getattr(made, function)()
    except USER_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"the recipe {place}:{function} fails in {where.filename}, line {where.lineno}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(plan, Plan):
        raise ValueError(f"{place}:{function} returned {type(plan).__name__}; a recipe returns a Plan")
    return plan


def change(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """`plan` with these fields changed; where a field takes a spec, its text."""
    return replace(plan, **{name: _value(name, typed) for name, typed in changes.items()})


def _value(name: str, typed: Any) -> Any:
    if name == "private_seed":  # no part of a plan's text
        return typed
    field = FIELDS[name]
    if name in READERS:
        return READERS[name](typed)
    if field.type == list[str]:
        return tuple(spec(one, field.kind) if field.kind else one for one in typed)
    return spec(typed, field.kind) if field.kind else typed


def read_guard(text: str) -> Guard:
    return NoGuard() if text == "none" else spec(text, "guards")


# Fields that are typed in other ways, too, than by a spec.
def _read_adapters(text: str) -> LoRA | None:
    return None if text == "none" else spec(text, "adapters")


READERS: dict[str, Callable[[str], Any]] = {"guard": read_guard, "start": read_start, "adapters": _read_adapters}


def read_guards(texts: Iterable[str]) -> list[Guard]:
    """Guards as they are typed where there may be several: braces stand for one guard each."""
    return [read_guard(one) for text in texts for one in expanded(text)]
