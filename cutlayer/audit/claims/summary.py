"""One figure for all guards: leakage against accuracy, by an attacker that does not know the guard and by the strongest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..leak import leak_share
from ..report.plots import INK, SOFT, png, pyplot

# An audit with every attack in every form of knowledge: the newer one, once it is there.
SOURCES = ("claims/all-guards.json", "attacks-quick.json")
_PLAIN = ("FORA", "SDAR", "PCAT", "UnSplit", "FeatureSniffer")  # the papers' attackers


class Mark(NamedTuple):
    """One guard: what is left of the leak, by either attacker, and the accuracy that is left."""

    guard: str
    accuracy: float
    paper: float
    strongest: float
    attack: str  # the strongest


def marks(root: Path) -> list[Mark]:
    path = next(path for name in SOURCES if (path := root / "docs/evidence" / name).exists())
    data = json.loads(path.read_text())
    data = data["results"]["audit"] if "results" in data else data
    rows = [row for row in data["rows"] if row.get("secret", "images") == "images" and row["valid"]]
    rows = [row for row in rows if not row.get("ceiling")]
    floor = data["floors"]["class_mean"]["ssim"]
    open_cut = [row for row in rows if row["guard"] == "none"]
    found = []
    for guard in dict.fromkeys(row["guard"] for row in rows):
        own = [row for row in rows if row["guard"] == guard]
        blind = [row for row in own if row["attack"].startswith(_PLAIN) and row.get("form") in ("oblivious", "")]
        if not blind:
            continue
        best, shown = (max(those, key=lambda row: row["value"]) for those in (own, blind))
        unknowing, knowing = _share(shown, open_cut, floor, _PLAIN), _share(best, open_cut, floor)
        found.append(Mark(guard, best["accuracy"], unknowing, knowing, best["attack"]))
    return found


def _share(row: Mapping[str, Any], open_cut: Sequence[Mapping[str, Any]], floor: float, names: Any = "") -> float:
    """Of what the open cut gives away to attackers of the same names."""
    control = max(one["value"] for one in open_cut if not names or one["attack"].startswith(names))
    return min(1.0, leak_share(row["value"], control, floor))


def figure(found: Sequence[Mark]) -> bytes:
    plt = pyplot()
    canvas, axes = plt.subplots(figsize=(9.2, 5.6))
    for number, one in enumerate(found):
        colour = plt.cm.tab10(number % 10)
        axes.plot([one.accuracy] * 2, [one.paper, one.strongest], color=colour, lw=1.6, alpha=0.6, zorder=2)
        axes.scatter(one.accuracy, one.paper, s=80, facecolor="white", edgecolor=colour, lw=2, zorder=3)
        axes.scatter(one.accuracy, one.strongest, s=90, color=colour, zorder=3, label=_name(one.guard))
    axes.scatter([], [], s=80, facecolor="white", edgecolor=INK, lw=2, label="attacker that does not know the guard")
    axes.scatter([], [], s=90, color=INK, label="strongest attacker")
    axes.set_xlabel("test accuracy (right is better)")
    axes.set_ylabel("share of the open cut's leak that is left (down is better)")
    axes.set_ylim(-0.03, 1.05)
    axes.grid(color="#eef2f6")
    axes.set_axisbelow(True)
    axes.axhline(0.1, color=SOFT, lw=0.8, ls=(0, (4, 4)))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False, fontsize=9)
    return png(canvas, plt)


def _name(guard: str) -> str:
    return "no guard" if guard == "none" else guard
