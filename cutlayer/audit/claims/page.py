"""EVIDENCE.md from committed JSON: claim, the paper's figure, ours, a verdict and why. Nothing on it is typed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...core.files import write_bytes, write_text
from . import EXPERIMENTS
from .base import HOLDS, NOT_MEASURED, NOT_TESTABLE, VERDICTS, Experiment, Finding
from .size import size
from .summary import Mark, figure, marks

PAGE = "EVIDENCE.md"
EVIDENCE = Path("docs/evidence")
CLAIMS = EVIDENCE / "claims"  # what `cutlayer reproduce` writes, to be committed
SUMMARY = EVIDENCE / "summary.png"


class Judged(NamedTuple):
    """A claim with its verdict and the file that it follows from."""

    experiment: Experiment
    finding: Finding
    source: str | None  # relative to the repository
    about: str = ""  # how it was made
    size: str = ""  # data, network, clients, epochs
    small: bool = False  # by the budget of two cores, not by the paper's
    beside: "Judged | None" = None  # a small measurement of what something larger judges


def judged(one: Experiment, root: Path) -> Judged:
    """From the experiment's own file; else from evidence of before it had a name; else it is not measured. Where the own
    file is the small budget's and there is other evidence, that comes first and the small one beside it."""
    if one.not_testable:
        return Judged(one, Finding(NOT_TESTABLE, one.not_testable), None)
    own, before = _own(one, root), _before(one, root)
    if own and before and own.small:
        return before._replace(beside=own)
    return own or before or Judged(one, Finding(NOT_MEASURED, f"Run: cutlayer reproduce {one.name}"), None)


def _own(one: Experiment, root: Path) -> Judged | None:
    path = root / CLAIMS / f"{one.name}.json"
    if not path.exists():
        return None
    data, source = json.loads(path.read_text()), str(path.relative_to(root))
    about = f"{data['budget']} budget, commit {data['commit']}"
    if why := data.get("not_measured") or data.get("unfinished"):
        return Judged(one, Finding(NOT_MEASURED, why), source, about)
    known = size(data["results"], len(data.get("seeds", ())))
    return Judged(one, one.judge(data["results"]), source, about, known, data["budget"] == "quick")


def _before(one: Experiment, root: Path) -> Judged | None:
    for earlier in one.earlier:
        path = root / EVIDENCE / earlier.file
        if path.exists():
            data = json.loads(path.read_text())
            small = "--budget quick" in data.get("command", "")
            source = str(path.relative_to(root))
            return Judged(one, earlier.judge(data), source, "recorded before", size(data, before=True), small)
    return None


def every(root: Path) -> list[Judged]:
    return [judged(one, root) for one in EXPERIMENTS.values()]


def text(found: Sequence[Judged], drawn: Sequence[Mark]) -> str:
    """The page."""
    count = {word: sum(one.finding.verdict == word for one in found) for word in VERDICTS}
    told = ", ".join(f"{word}: {many}" for word, many in count.items() if many)
    small = sum(one.small for one in found)
    lines = [
        "# Evidence: do the papers hold?",
        "",
        "Made by `make evidence` from the JSON in [docs/evidence](docs/evidence/README.md); a test says when it is stale.",
        "`cutlayer reproduce NAME` runs an experiment again; `cutlayer reproduce --list` names them.",
        "",
        f"{len(found)} headlines; {told}. Intervals are 95 %: over seeds where there are several, else over images.",
        f"{small} verdicts are marked *small*: measured by the budget of two cores (`--budget quick`), minutes in place of the "
        "paper's hours, on the data and the network named beside them; they say how it is there and no more.",
        "Verdicts are computed from the figures by the rule beside each claim in `cutlayer/audit/claims`.",
        "",
        f"![leakage against accuracy]({SUMMARY})",
        "",
        "Leakage against accuracy on digits: hollow marks are what attackers find that do not know the guard, as in the papers;",
        "full ones the strongest attacker there is.",
        "",
        "| guard | accuracy | leak left, attacker that does not know the guard | leak left, strongest attacker | which |",
        "|---|---|---|---|---|",
        *(
            f"| `{one.guard}` | {one.accuracy:.3f} | {one.paper:.2f} | {one.strongest:.2f} | `{one.attack}` |"
            for one in drawn
        ),
    ]
    for paper in dict.fromkeys(one.experiment.paper for one in found):
        lines += [
            "",
            f"## {paper}",
            "",
            "| claim | the paper's figure | ours | measured on | verdict | why | from |",
            "|---|---|---|---|---|---|---|",
        ]
        for one in found:
            if one.experiment.paper == paper:
                lines += [_row(one)] + ([_row(one.beside, "The same, measured small.")] if one.beside else [])
    return "\n".join(lines) + "\n"


def _row(one: Judged, claim: str = "") -> str:
    ours = "; ".join(figure.shown() for figure in one.finding.figures) or "-"
    word = one.finding.verdict if one.finding.verdict == HOLDS else f"**{one.finding.verdict}**"
    word += ", *small*" if one.small else ""
    source = f"[{Path(one.source).name}]({one.source}), {one.about}" if one.source else f"`{one.experiment.name}`"
    cells = (
        claim or one.experiment.claim,
        one.experiment.figure,
        ours,
        one.size or "-",
        word,
        one.finding.why,
        source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write(root: Path) -> list[Judged]:
    """The page and its figure, anew."""
    found, drawn = every(root), marks(root)
    write_text(root / PAGE, text(found, drawn))
    write_bytes(root / SUMMARY, figure(drawn))
    return found
