"""How large a measurement was, in words that follow from the plans in its file: no page may show a minute's training on two
cores as if it were the paper's."""

import ast
from collections.abc import Iterator
from typing import Any

from ...training.plan.plan import Plan

FIELDS = ("data", "net", "clients", "partition", "epochs")
MOST = 2  # values of a field that are named one by one


def size(data: Any, seeds: int = 0, before: bool = False) -> str:
    """Data, network, clients and epochs of the plans in a file, and how many seeds; empty where there is no plan. A plan
    of `before` that names no data had the digits."""
    usual = {name: repr(getattr(Plan(), name)) for name in FIELDS}
    usual |= {"data": "Digits()"} if before else {}
    told = [{**usual, **fields} for fields in plans(data)]
    if not told:
        return ""
    said = [_values(told, "data"), _values(told, "net")]
    if (clients := _values(told, "clients")) != "1":
        said += [f"{clients} clients", _values(told, "partition")]
    said.append(f"{_values(told, 'epochs')} epochs")
    if seeds:
        said.append("one seed" if seeds == 1 else f"{seeds} seeds")
    return ", ".join(word for word in said if word)


def plans(data: Any) -> Iterator[dict[str, str]]:
    """What every plan in a file names, wherever it is; of a comparison what each variant changes of it."""
    if isinstance(data, dict):
        if isinstance(data.get("plan"), str) and (fields := _fields(data["plan"])) is not None:
            rows = data.get("rows") if isinstance(data.get("rows"), list) else None
            changes = [_changes(row["variant"]) for row in rows or () if isinstance(row, dict) and row.get("variant")]
            yield from ({**fields, **change} for change in changes or [{}])
        for inner in data.values():
            yield from plans(inner)
    elif isinstance(data, list):
        for inner in data:
            yield from plans(inner)


def _fields(text: str) -> dict[str, str] | None:
    """What is named in the text; a plan of any version can be read so."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    return (
        {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg} if isinstance(call, ast.Call) else None
    )


def _changes(variant: str) -> dict[str, str]:
    """`clients=100; guard=none` as fields; `plan` changes nothing."""
    return dict(one.split("=", 1) for one in variant.split("; ") if "=" in one)


def _values(told: list[dict[str, str]], field: str) -> str:
    found = list(dict.fromkeys(one[field] for one in told))
    if len(found) > MOST and all(one.isdigit() for one in found):
        return f"{min(map(int, found))} to {max(map(int, found))}"
    named = [one.removesuffix("()") for one in found[:MOST]]
    return " and ".join(named) + (f" and {len(found) - MOST} more" if len(found) > MOST else "")
