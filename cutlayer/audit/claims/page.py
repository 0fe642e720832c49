"""EVIDENCE.md from committed JSON: claim, the paper's figure, ours, a verdict and why. Nothing on it is typed."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...core.files import write_bytes, write_text
from . import EXPERIMENTS
from .base import BUDGETS, HOLDS, NOT_MEASURED, NOT_TESTABLE, VERDICTS, Experiment, Finding
from .size import size, sizes
from .summary import PAPERS, Drawn, figure, summary

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
    budget: str = "full"  # below it is no measurement of the paper's size, and the page says so
    beside: "tuple[Judged, ...]" = ()  # what other files have of the same claim


def judged(one: Experiment, root: Path) -> Judged:
    """From all files that measured it, the best first: what was measured before what was not, larger budgets before the
    small one, the experiment's own files before those of before it had a name."""
    if one.not_testable:
        return Judged(one, Finding(NOT_TESTABLE, one.not_testable), None)
    found = sorted([*_own(one, root), *_before(one, root)], key=_rank)
    if not found:
        return Judged(one, Finding(NOT_MEASURED, f"Run: cutlayer reproduce {one.name}"), None)
    return found[0]._replace(beside=tuple(found[1:]))


def _rank(one: Judged) -> tuple[bool, bool]:
    return one.finding.verdict == NOT_MEASURED, one.budget == "quick"


def _own(one: Experiment, root: Path) -> Iterator[Judged]:
    """NAME-full.json and so on by budget, the largest first, and NAME.json."""
    names = (*(f"{one.name}-{budget}" for budget in reversed(BUDGETS)), one.name)
    for path in (root / CLAIMS / f"{name}.json" for name in names):
        if not path.exists():
            continue
        data, source = json.loads(path.read_text()), str(path.relative_to(root))
        about = f"{data['budget']} budget, commit {data['commit']}"
        if why := data.get("not_measured") or data.get("unfinished"):
            yield Judged(one, Finding(NOT_MEASURED, why), source, about)
        else:
            results = data["results"]
            yield Judged(one, one.judge(results), source, about, sizes(results), data["budget"])


def _before(one: Experiment, root: Path) -> Iterator[Judged]:
    for earlier in one.earlier:
        path = root / EVIDENCE / earlier.file
        if path.exists():
            data = json.loads(path.read_text())
            part, small = earlier.part(data), "--budget quick" in data.get("command", "")
            source, budget = str(path.relative_to(root)), "quick" if small else "full"
            yield Judged(one, earlier.judge(part), source, "recorded before", size(part, before=True), budget)


def every(root: Path) -> list[Judged]:
    return [judged(one, root) for one in EXPERIMENTS.values()]


def text(found: Sequence[Judged], drawn: Drawn) -> str:
    """The page."""
    count = {word: sum(one.finding.verdict == word for one in found) for word in VERDICTS}
    told = ", ".join(f"{word}: {many}" for word, many in count.items() if many)
    small, medium = (sum(one.budget == size for one in found) for size in ("quick", "medium"))
    lines = [
        "# Evidence: do the papers hold?",
        "",
        "Made by `make evidence` from the JSON in [docs/evidence](docs/evidence/README.md); a test says when it is stale.",
        "`cutlayer reproduce NAME` runs an experiment again; `cutlayer reproduce --list` names them.",
        "",
        f"{len(found)} headlines; {told}. Intervals are 95 %: over seeds where there are several, else over images; of alarms by how many were counted.",
        f"{small} verdicts are marked *small*: measured by the budget of two cores (`--budget quick`), minutes in place of the "
        "paper's hours, on the data and the network named beside them; they say how it is there and no more.",
        *([_MEDIUM.format(medium)] if medium else []),
        "Verdicts are computed from the figures by the rule beside each claim in `cutlayer/audit/claims`.",
        "",
        f"![leakage against accuracy]({SUMMARY})",
        "",
        f"Measured on {drawn.size} ([{Path(drawn.source).name}]({drawn.source})). Hollow circles are what the papers' attackers find",
        f"({', '.join(PAPERS)}, which do not know the guard), full squares the strongest attacker there is. A leak of 1 is what the",
        "open cut gives away to the same attackers, 0 what the class alone tells. Good is a mark in both shaded parts: at most a tenth of the leak, at most two points.",
        "The leak drawn is that of pictures, by their mean SSIM; verdicts take the worst of that, of the best-read tenth and of labels.",
        "",
        "| guard | accuracy | points lost | leak left, papers' attackers | leak left, strongest attacker | which |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{one.guard}` | {one.accuracy:.3f} | {one.lost:.1f} | {one.paper:.2f} | {one.strongest:.2f} | `{one.attack}` |"
            for one in drawn.marks
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
                lines += [_row(one), *(_row(other, _again(other)) for other in one.beside)]
    return "\n".join(lines) + "\n"


_MEDIUM = (
    "{} are marked *medium*: measured in minutes of one GPU or a dozen cores (`--budget medium`), with fewer images, epochs or seeds "
    "than the papers, as named beside them."
)
_MARKS = {"quick": "small", "medium": "medium"}


def _again(one: Judged) -> str:
    return f"The same, measured {_MARKS[one.budget]}." if one.budget in _MARKS else "The same, from another file."


def _row(one: Judged, claim: str = "") -> str:
    ours = "; ".join(figure.shown(one.experiment.whose) for figure in one.finding.figures) or "-"
    word = one.finding.verdict if one.finding.verdict == HOLDS else f"**{one.finding.verdict}**"
    word += f", *{_MARKS[one.budget]}*" if one.budget in _MARKS else ""
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
    found, drawn = every(root), summary(root)
    write_text(root / PAGE, text(found, drawn))
    write_bytes(root / SUMMARY, figure(drawn.marks))
    return found
