"""Writes what the plug-in folders offer into the docs: python tools/tables.py

A page has a line `<!-- table: guards -->` and, further down, `<!-- end -->`. What stands between them is made from
the docstrings of that folder, a row a plug-in, so that nobody writes a new one there by hand; `papers` is made from
docs/papers.txt, `bench` and `speed` (its main rows) from docs/evidence/bench.json. A test compares the pages with
what this would write.
"""

import json
import re
from pathlib import Path
from typing import Any

import papers

from cutlayer.bench.history import less_is_better
from cutlayer.bench.measurement import met
from cutlayer.bench.run import ON_A_GPU
from cutlayer.core.spec import names, signature, summary

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MEASURED = ROOT / "docs/evidence/bench.json"
MAIN = ("inproc", "grpc.train", "clients.1000", "splitfed", "idle", "link.20mbit")  # of the benchmarks
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def typed(kind: str, name: str, thing: Any) -> str:
    """How a person would write it: a guard in its usual setting, a rule with all that can be set."""
    if kind == "guards":
        try:
            return repr(thing.usual())
        except NotImplementedError:  # made of others, it has no usual setting
            return f"{name}(…)"
    return f"{name}({signature(thing)})" if kind == "rules" else name


def measured(prefixes: tuple[str, ...], without: tuple[str, ...]) -> str:
    """The recorded benchmarks whose names begin so, without those that begin otherwise."""
    rows = sorted(json.loads(MEASURED.read_text()), key=lambda row: str(row["name"]))
    lines = [
        "| `cutlayer bench` | measured | ratio (higher is better, unless said) | against | goal |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["name"].startswith(prefixes) and not row["name"].startswith(without):
            word = {True: ": met", False: ": missed", None: ""}[met(row["value"], row["ratio"], row["goal"])]
            figure = f"{row['value']:,.0f}" if row["value"] >= 100 else f"{row['value']:.3g}"
            value = f"{figure} {row['unit']}".replace("|", "\\|")
            lines.append(f"| `{row['name']}` | {value} | {ratio(row)} | {row['baseline']} | {row['goal']}{word} |")
    return "\n".join(lines) + "\n"


def ratio(row: dict[str, Any]) -> str:
    """Ours by the plain way's, and where more of it is not better, what is."""
    said = " (1 is best)" if " to " in row["goal"] else " (lower is better)" if less_is_better(row) else ""
    return f"{row['ratio']:.2f}{said}"


def table(kind: str) -> str:
    if kind in ("bench", "bench_gpu", "speed"):
        return measured(
            {"bench": ("",), "bench_gpu": ON_A_GPU, "speed": MAIN}[kind], () if kind != "bench" else ON_A_GPU
        )
    if kind == "papers":
        return papers.page(papers.LIST.read_text())
    rows = [(typed(kind, name, thing), summary(thing).replace("|", "\\|")) for name, thing in names(kind).items()]
    lines = [f"| {kind.removesuffix('s')} | is |", "|---|---|", *(f"| `{text}` | {what} |" for text, what in rows)]
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """The text of a page with its tables as they should be."""
    return BLOCK.sub(lambda found: found[1] + table(found[2]) + found[3], page)


def write() -> None:
    for path in PAGES:
        text = path.read_text()
        if filled(text) != text:
            path.write_text(filled(text))
            print(f"{path.relative_to(ROOT)}: written anew")


if __name__ == "__main__":
    write()
