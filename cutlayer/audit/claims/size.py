"""How large a measurement was, in words that follow from the plans in its file: no page may show a minute's training on two
cores as if it were the paper's."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from ...training.plan.plan import Plan

FIELDS = ("data", "net", "clients", "partition", "epochs")
MOST = 2  # values of a field that are named one by one


def sizes(results: Mapping[str, Any]) -> str:
    """Of an experiment's commands: once where all are of one size, else each by name."""
    found: dict[str, list[str]] = {}
    for name, data in results.items():
        found.setdefault(size(data), []).append(name)
    if len(found) < 2:
        return next(iter(found), "")
    return "; ".join(f"{' and '.join(names)}: {text}" for text, names in found.items())


def size(data: Any, before: bool = False) -> str:
    """Data, network, clients and epochs of the plans in a file, and how many seeds; where there is no plan what the file
    says of itself. A plan of `before` that names no data had the digits."""
    usual = {name: repr(getattr(Plan(), name)) for name in FIELDS}
    usual |= {"data": "Digits()"} if before else {}
    told = [{**usual, **fields} for fields in plans(data)]
    seeds = len(_seeds(data))
    many = [] if not seeds else ["one seed" if seeds == 1 else f"{seeds} seeds"]
    if not told:
        return ", ".join([data["what"], *many]) if isinstance(data, dict) and data.get("what") else ""
    said = [_values(told, "data"), _values(told, "net")]
    if (clients := _values(told, "clients")) != "1":
        said += [f"{clients} clients", _values(told, "partition")]
    return ", ".join(word for word in (*said, f"{_values(told, 'epochs')} epochs", *many) if word)


def _seeds(data: Any) -> set[int]:
    """What the rows, or else the file, were made with."""
    if isinstance(data, list):
        return set().union(*map(_seeds, data))
    if not isinstance(data, dict):
        return set()
    own = {data["seed"]} if isinstance(data.get("seed"), int) else set()
    found = own.union(*map(_seeds, data.values()))
    return found or (set(data["seeds"]) if isinstance(data.get("seeds"), list) else set())


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
