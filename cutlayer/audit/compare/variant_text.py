"""From what was typed for a comparison to its variants: a plan with some fields changed."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.expand import entries, expanded
from ...core.spec import spec
from ...training.plan.fields import FIELDS, RENAMED
from ...training.plan.plan import Plan
from ...training.plan.plan_text import change

AS_IT_IS = "plan"  # the variant that changes nothing
_ONE_BRACE = re.compile(r"([^{}]*)\{([^{}]*)\}([^{}]*)")


@dataclass(frozen=True)
class Variant:
    """A plan with some fields changed, by the text that was typed for it."""

    name: str
    plan: Plan
    family: str = ""  # what it was typed as, where braces over one number gave several: the axis of a chart
    axis: str = ""  # what that number is called
    setting: float | None = None
    alone: str = ""  # the variant that is a client alone with these settings; empty: none is, or this is one


def variants(plan: Plan, texts: Sequence[str]) -> list[Variant]:
    """`rule=FedAvg`, `rounds=Relay; roles=Frozen(share=0.5)`, `rule=FedMuon(lr={0.01,0.05})`, or `plan` as it is."""
    found = [one for text in texts for one in _expanded(plan, text.strip())]
    if len(found) < 2:
        raise ValueError(
            "a comparison needs two variants or more: --with 'rule=FedAvg' --with 'rule=FedMuon(lr={0.01,0.05})'; "
            f"--with {AS_IT_IS} is the plan as it is"
        )
    first: dict[str, Variant] = {}
    for one in found:
        other = first.setdefault(repr(one.plan), one)
        if other is not one:
            raise ValueError(f"{other.name!r} and {one.name!r} are the same plan: leave one out")
    return found


def _expanded(plan: Plan, text: str) -> list[Variant]:
    names = expanded(text)
    family, axis, numbers = _family(text, len(names))
    return [
        Variant(name, _changed(plan, name), family, axis, numbers[place] if numbers else None)
        for place, name in enumerate(names)
    ]


def _family(text: str, count: int) -> tuple[str, str, list[float]]:
    """(the text with … for the number, its name, its values), where one pair of braces holds nothing but numbers."""
    found = _ONE_BRACE.fullmatch(text)
    try:
        numbers = [float(one) for one in found[2].split(",")] if found else []
    except ValueError:
        return "", "", []
    if found is None or count < 2 or len(numbers) != count:
        return "", "", []
    before, _, behind = found.groups()
    named = re.search(r"(\w+)\s*=\s*$", before)
    return f"{before}…{behind}", named[1] if named else "value", numbers


def _changed(plan: Plan, text: str) -> Plan:
    if text == AS_IT_IS:
        return plan
    changes: dict[str, Any] = {}
    for part in _fields(text) or [""]:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise ValueError(
                f"{text!r}: write field=value, with ; between several, e.g. 'rule=FedAvg; local_steps=5'"
            )
        if name == "seed":
            raise ValueError("all variants are trained with the same seeds: use --seed and --seeds")
        if name not in FIELDS:
            known = ", ".join(sorted(FIELDS.keys() - {"seed"}))
            now = f"{name} is called {RENAMED[name]} since version 0.2" if name in RENAMED else f"it has {known}"
            raise ValueError(f"{text!r}: a plan has no field {name!r}; {now}")
        if name in changes:
            raise ValueError(f"{text!r} changes {name} twice")
        changes[name] = _value(name, value)
    if "rounds" in changes and "rule" not in changes and not spec(changes["rounds"], "rounds").merges:
        changes["rule"] = "Latest"  # a plan whose rounds merge has a rule for it, asked for or not
    try:
        return change(plan, changes)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{text}: {error}") from error


def _fields(text: str) -> list[str]:
    """What stands between semicolons outside quotes."""
    return [part for part in re.findall(r"""(?:"[^"]*"|'[^']*'|[^;"'])+""", text) if part.strip()]


def _value(name: str, text: str) -> Any:
    """As `change` takes it: specs stay text, the rest are Python's literals or plain words."""
    if FIELDS[name].type == list[str]:
        return entries(text)
    if FIELDS[name].kind:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
