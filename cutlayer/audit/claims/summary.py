"""One figure for all guards: the leak that is left and the accuracy that it costs, for the papers' attackers and the strongest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..leak import leak_share
from ..report.plots import INK, SOFT, png, pyplot
from .base import guard_accuracy
from .guards import MOST_LEFT, MOST_LOST
from .size import size

# Audits with every attack in every form of knowledge, the newer one first; one without the papers' attackers draws nothing.
SOURCES = ("docs/evidence/claims/all-guards.json", "docs/evidence/attacks-quick.json")
PAPERS = ("FORA", "SDAR", "PCAT", "UnSplit", "FeatureSniffer")
GOOD = "#dcefe3"


class Mark(NamedTuple):
    """One guard: what is left of the leak, by either attacker, the accuracy that is left, and the points it costs."""

    guard: str
    accuracy: float
    paper: float
    strongest: float
    attack: str  # the strongest
    lost: float = 0.0


class Drawn(NamedTuple):
    """All guards of an audit."""

    marks: tuple[Mark, ...] = ()
    source: str = SOURCES[-1]
    size: str = ""


def summary(root: Path) -> Drawn:
    """Of the first source that has the papers' attackers."""
    for source in SOURCES:
        if (root / source).exists():
            data = json.loads((root / source).read_text())
            own = "results" in data
            data = data["results"].get("audit") if own else data
            if data is not None and (found := marks(data)):
                return Drawn(tuple(found), source, size(data, before=not own))
    return Drawn()


def marks(data: Mapping[str, Any]) -> list[Mark]:
    """Guards that both kinds of attackers were tried against, the leakiest first."""
    rows = [row for row in data["rows"] if row.get("secret", "images") == "images" and row["valid"]]
    rows = [row for row in rows if not row.get("ceiling")]
    floor, bare = data["floors"]["class_mean"]["ssim"], guard_accuracy(data, "none")
    open_cut = [row for row in rows if row["guard"] == "none"]
    found = []
    for guard in dict.fromkeys(row["guard"] for row in rows):
        own = [row for row in rows if row["guard"] == guard]
        blind = [row for row in own if row["attack"].startswith(PAPERS) and row.get("form") in ("oblivious", "")]
        if blind:
            best, shown = (max(those, key=lambda row: row["value"]) for those in (own, blind))
            unknowing, knowing = _share(shown, open_cut, floor, PAPERS), _share(best, open_cut, floor)
            lost = [one - other for one, other in zip(bare, guard_accuracy(data, guard), strict=True)]
            found.append(Mark(guard, best["accuracy"], unknowing, knowing, best["attack"], sum(lost) / len(lost)))
    return sorted(found, key=lambda one: (one.guard != "none", -one.strongest, -one.paper))


def _share(row: Mapping[str, Any], open_cut: Sequence[Mapping[str, Any]], floor: float, names: Any = "") -> float:
    """Of what the open cut gives away to attackers of the same names."""
    control = max(one["value"] for one in open_cut if not names or one["attack"].startswith(names))
    return min(1.0, leak_share(row["value"], control, floor))


# ------------------------------------------------------------------ the figure
def figure(found: Sequence[Mark]) -> bytes:
    """For a slide: a guard is a line of two panels, the leak that either attacker finds and the points of accuracy lost.
    Marks differ in form and filling, so that grey is enough."""
    plt = pyplot()
    with plt.rc_context({"font.size": 14}):
        canvas, (leak, cost) = plt.subplots(
            1, 2, sharey=True, figsize=(12.8, 2.6 + 0.56 * max(1, len(found))), layout="constrained",
            gridspec_kw={"width_ratios": (1.7, 1)},
        )  # fmt: skip
        _leaks(leak, found)
        _costs(cost, found)
        leak.set_yticks(range(len(found)), [_name(one.guard) for one in found])
        leak.set_ylim(len(found) - 0.45, -0.55)
        for axes in (leak, cost):
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x", color="#e7ecf1")
            axes.set_axisbelow(True)
        canvas.suptitle(_headline(found), fontsize=17, x=0.012, ha="left")
        marks_, words = leak.get_legend_handles_labels()
        canvas.legend(
            marks_[::-1], words[::-1], loc="outside lower left", ncols=3, frameon=False, columnspacing=1.4,
            handletextpad=0.5,
        )  # fmt: skip
        return png(canvas, plt)


def _leaks(axes: Any, found: Sequence[Mark]) -> None:
    places = range(len(found))
    axes.axvspan(-0.04, MOST_LEFT, color=GOOD, zorder=0, label="good: at most a tenth left, at most two points")
    axes.axvline(MOST_LEFT, color=SOFT, lw=1.2, ls=(0, (4, 3)), zorder=1)
    axes.hlines(
        places, [one.paper for one in found], [one.strongest for one in found], color=SOFT, lw=3, alpha=0.6, zorder=2
    )
    axes.scatter(
        [one.strongest for one in found],
        places,
        s=130,
        marker="s",
        color=INK,
        zorder=3,
        label="the strongest attacker",
    )
    # Where both find as much, the circle lies on the square: white inside, so that both are seen.
    axes.scatter(
        [one.paper for one in found], places, s=95, facecolor="white", edgecolor=INK, lw=2.2, zorder=4,
        label="the papers' attackers, which do not know the guard",
    )  # fmt: skip
    axes.set_xlim(-0.04, 1.05)
    axes.set_xlabel("leak left (less is better)")


def _costs(axes: Any, found: Sequence[Mark]) -> None:
    most = max((one.lost for one in found), default=1.0)
    low = min(0.0, *(one.lost for one in found), -0.02 * most)
    axes.axvspan(low, MOST_LOST, color=GOOD, zorder=0)
    axes.axvline(MOST_LOST, color=SOFT, lw=1.2, ls=(0, (4, 3)), zorder=1)
    axes.barh(range(len(found)), [one.lost for one in found], height=0.5, color=SOFT, zorder=2)
    for place, one in enumerate(found):
        edge = max(one.lost, MOST_LOST) + 0.03 * most  # right of the dashed line too
        axes.text(edge, place, f"{one.lost:.1f}".replace("-", "\N{MINUS SIGN}"), va="center", zorder=3)
    axes.set_xlim(low, 1.2 * most)
    axes.set_xlabel("points lost (less is better)")


def _headline(found: Sequence[Mark]) -> str:
    guards = [one for one in found if one.guard != "none"]
    good = sum(one.strongest <= MOST_LEFT and one.lost <= MOST_LOST for one in guards)
    seem = sum(one.paper <= MOST_LEFT and one.lost <= MOST_LOST for one in guards)
    return f"{seem} of {len(guards)} guards are good by the papers' attackers, {good} by the strongest"


def _name(guard: str) -> str:
    return "no guard" if guard == "none" else guard
