"""One schema: what audits write, what audit/rows.py says, and what docs/audit.md explains have the same fields."""

import re
from pathlib import Path
from typing import get_args, get_type_hints, is_typeddict

import pytest

from cutlayer.audit.rows import (
    AloneRow,
    AuditFile,
    Bought,
    DetectorRow,
    Leak,
    MeterRow,
    PoisonRow,
    Remarks,
    Row,
    RunFacts,
    Sampled,
    SecretVerdict,
    Verdict,
)

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text().split("\n## audit.json\n")[1]


def strays(data, kind=AuditFile, where="audit.json"):
    """Fields of nested data that its type does not have, and fields that the type requires and that are missing."""
    hints = get_type_hints(kind)
    found = [f"{where}: {name} is unknown" for name in data.keys() - hints.keys()]
    found += [f"{where}: {name} is missing" for name in kind.__required_keys__ - data.keys()]
    if kind is AuditFile:
        for one in data.get("verdicts", []):
            found += _unlike(one, Verdict) + [
                stray for each in one["secrets"] for stray in _unlike(each, SecretVerdict)
            ]
    for name in data.keys() & hints.keys():
        inner = next((one for one in get_args(hints[name]) if is_typeddict(one)), None)
        for one in data[name] if inner is not None else ():
            found += strays(one, inner, name)
    return found


def _unlike(data, kind):
    """The same of a dataclass, all of whose fields are there."""
    return [f"{kind.__name__}: {name}" for name in data.keys() ^ get_type_hints(kind).keys()]


def fields(*kinds):
    return {name for kind in kinds for name in get_type_hints(kind)}


def tables():
    """The fields in the first column of each table, by the words before it."""
    found = {}
    for words, table in re.findall(r"([^\n]+)\n\n\| field \| is \|\n\|---\|---\|\n((?:\|[^\n]*\n)+)", PAGE + "\n"):
        firsts = [line.split(" | ")[0] for line in table.splitlines()]
        found[words] = {name for first in firsts for name in re.findall(r"`(\w+)`", first)}
    first = re.match(r"\n\| field \| is \|\n\|---\|---\|\n((?:\|[^\n]*\n)+)", PAGE)
    found["whole"] = {name for line in first[1].splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    return found


def test_the_page_has_a_line_for_every_field_and_no_other():
    found = tables()
    assert len(found) == 10
    *rows, verdicts, secrets, poisoned, alone, buys, leaks = (
        names for words, names in found.items() if words != "whole"
    )
    assert verdicts == fields(Verdict) and secrets == fields(SecretVerdict)
    assert found["whole"] == fields(AuditFile)
    assert set().union(*rows) == fields(Row) and rows[0] <= fields(RunFacts)
    assert poisoned == fields(PoisonRow) and alone == fields(AloneRow) and buys == fields(Bought)
    # A line may sum up those that are explained in the line of another table.
    assert leaks <= fields(MeterRow, DetectorRow)
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert fields(DetectorRow, Leak, MeterRow, Remarks, Sampled) <= explained


@pytest.mark.parametrize(("field", "says"), [("new", "new is unknown"), ("detected", "")])
def test_a_field_that_nobody_wrote_down_is_found(field, says):
    row = {"guard": "none", "detectors_attacked": [{"detector": "A()", field: True}]}
    assert strays(row, Row, "row") == ([f"detectors_attacked: {says}"] if says else [])
    assert "audit.json: plan is missing" in strays({"rows": []})
