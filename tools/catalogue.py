"""Writes docs/catalogue.md: every guard and attack with its paper, what it claims and costs, and what evidence says.

    python tools/catalogue.py

No figure is written by hand: papers are those that the plug-in's own text names, claims are the guard's own, and
figures are those of the audits in docs/evidence.
"""

import inspect
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from cutlayer.core.spec import names, spec, summary

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "catalogue.md"
CUT = (20, 12, 12)  # of SimpleCNN, the demo's network: claims are told for this one
PICTURE = (1, 28, 28)
# Methods whose own text names them without authors: how the papers call them.
METHODS = {
    "C3": "C3-SL",
    "FORA": "FORA",
    "FeatureSniffer": "FSA",
    "FedLite": "FedLite",
    "KAnonymous": "KD-UFSL",
    "LFQ": "Madill, thesis, 2025",
    "LightSplit": "LightSplit",
    "NoPeek": "NoPeek",
    "Prism": "Madill, thesis, 2025",
    "RandTopK": "Zheng et al. 2023",
    "SEAL": "SEAL",
    "SplitFC": "SplitFC",
}
_YEAR = r"\(?(?:19|20)\d\d\)?"
_CITED = re.compile(
    rf"((?:[A-Z][\w’'-]+(?:,| &| and|))(?: [A-Z][\w’'-]+(?:,| and| &)?)*(?: et al\.?,?)?),? ({_YEAR})"
)


def paper(thing: Any) -> str:
    """Authors and year as the plug-in's own text has them, or the name of the method."""
    texts = [inspect.getdoc(thing) or "", inspect.getdoc(inspect.getmodule(thing)) or ""]
    for text in texts:
        if found := _CITED.search(text.replace("\n", " ")):
            return f"{found[1].rstrip(',')} {found[2].strip('()')}"
    return METHODS.get(thing.__name__, "–")


def audits() -> list[tuple[str, dict[str, Any]]]:
    found = [(path.name, json.loads(path.read_text())) for path in sorted((ROOT / "docs/evidence").glob("*.json"))]
    return [(name, data) for name, data in found if isinstance(data, dict) and "verdicts" in data]


def of_guard(name: str, told: list[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
    """(cost, evidence) over all audits in which this guard was alone."""
    points, ratios, leaks, grades, where = [], [], [], [], []
    for file, data in told:
        rows = data["rows"]
        opened = next(row for row in rows if row["guard"] == "none")
        for judged in data["verdicts"]:
            if judged["guard"].partition("(")[0] != name or judged["guard"] == "none":
                continue
            row = next(row for row in rows if row["guard"] == judged["guard"])
            points.append(100 * (row["accuracy"] - opened["accuracy"]))
            ratios.append((row["bytes_up"] + row["bytes_down"]) / (opened["bytes_up"] + opened["bytes_down"]))
            grades.append(judged["graded"])
            where.append(file)
            if judged["leak"] is not None:
                leaks.append(100 * judged["leak"])
    if not where:
        return "–", "none in these audits"
    cost = f"accuracy {_range(points, '+.0f')} points, {_range(ratios, '.2f')} of the bytes"
    left = f"{_range(leaks, '.0f')} % of the leak left: " if leaks else ""
    files = ", ".join(f"[{file.removesuffix('.json')}](evidence/{file})" for file in dict.fromkeys(where))
    return cost, f"{left}{', '.join(dict.fromkeys(grades))} ({files})"


def of_attack(name: str, told: list[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
    """(cost, evidence): seconds of a row, and how it did on the open cut and behind guards."""
    seconds, opened, guarded, where = [], defaultdict(list), defaultdict(list), []
    for file, data in told:
        for row in data["rows"]:
            if row["attack"].partition("(")[0] != name:
                continue
            seconds.append(row["seconds"])
            where.append(file)
            metric = row["metric"].replace("_", " ")
            (opened if row["guard"] == "none" else guarded)[metric].append(row["value"])
    if not where:
        return "–", "none in these audits"
    said = [f"{metric} {_range(values, '.2f')} on the open cut" for metric, values in opened.items()]
    said += [f"{metric} {_range(values, '.2f')} behind guards" for metric, values in guarded.items()]
    files = ", ".join(f"[{file.removesuffix('.json')}](evidence/{file})" for file in dict.fromkeys(where))
    return f"{statistics.median(seconds):.0f} s (median)", f"{'; '.join(said)} ({files})"


def _range(values: list[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def claim(thing: Any) -> str:
    for cut in (CUT, PICTURE):
        try:
            return thing.usual().claim(cut)
        except NotImplementedError:
            return "those of its parts"
        except ValueError:  # it reads pictures, and fits a cut at the input alone
            continue
    return "–"


def knows(name: str, thing: Any) -> str:
    try:
        made = spec(name, "attacks")
    except ValueError:
        return "–"
    return "; ".join(made.in_words()) if hasattr(made, "in_words") else "–"


def page() -> str:
    told = audits()
    lines = [
        "# Every guard and attack", "",
        "Made by `make docs` from the plug-ins and the audits in [evidence](evidence/README.md); no figure is typed",
        "by hand. Figures are those of guards that stand alone, over all settings that were audited: chains and",
        "single runs are in the evidence.",
        "", "## Guards", "",
        "| guard | is | paper | claims, whoever attacks | cost in our audits | evidence |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, thing in names("guards").items():
        cost, evidence = of_guard(name, told)
        lines.append(_row(f"`{name}`", summary(thing), paper(thing), claim(thing), cost, evidence))
    lines += [
        "", "## Attacks", "",
        "| attack | is | paper | knows | cost in our audits | evidence |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, thing in names("attacks").items():
        cost, evidence = of_attack(name, told)
        lines.append(_row(f"`{name}`", summary(thing), paper(thing), knows(name, thing), cost, evidence))
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
