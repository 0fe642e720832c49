"""docs/papers.txt, read: what five papers describe, and what does it or the reason why nothing does."""

from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).parents[1] / "docs" / "papers.txt"
NO, PYTHON = "no: ", "from Python: "


class Thing(NamedTuple):
    """One thing of a paper: done by a command, or from Python alone, or not there, with the reason."""

    paper: str
    thing: str
    where: str
    command: str
    python: str
    why_not: str
    note: str


def things(text: str) -> list[Thing]:
    """The lines of the list; a line that is none of its kinds is refused, with its number."""
    found, paper = list[Thing](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("# "):
            continue
        if line.startswith("== "):
            paper = line.removeprefix("== ")
            continue
        cells = [cell.strip() for cell in line.split(" | ")]
        if not paper or len(cells) not in (3, 4) or not all(cells):
            raise ValueError(f"line {number} is no 'thing | where | command' or '… | note' below a paper: {line!r}")
        thing, where, does, *note = cells
        command = does if does.startswith("cutlayer ") else ""
        python, why_not = (does.removeprefix(kind) if does.startswith(kind) else "" for kind in (PYTHON, NO))
        if not (command or python or why_not):
            raise ValueError(f"line {number} has neither a command nor {PYTHON!r} or {NO!r}: {does!r}")
        found.append(Thing(paper, thing, where, command, python, why_not, *(note or [""])))
    return found


def page(text: str) -> str:
    """A table a paper, as Markdown."""
    every = things(text)
    lines: list[str] = []
    for paper in dict.fromkeys(one.paper for one in every):
        own = [one for one in every if one.paper == paper]
        lines += [f"## {paper}", "", "| thing | where | command |", "|---|---|---|"]
        lines += [f"| {one.thing} | {one.where} | {_does(one)} |" for one in own]
        lines.append("")
    there, python, missing = (
        sum(bool(getattr(one, kind)) for one in every) for kind in ("command", "python", "why_not")
    )
    counted = f"{len(every)} things: {there} with a command, {python} from Python alone, {missing} not there."
    return "\n".join([counted, "", *lines])


def _does(one: Thing) -> str:
    said = f"`{one.command}`" if one.command else f"from Python: `{one.python}`" if one.python else one.why_not
    said = f"not there: {said}" if one.why_not else said
    return f"{said} ({one.note})" if one.note else said
