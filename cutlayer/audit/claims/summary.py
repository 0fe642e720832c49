"""One figure for all guards: leakage against accuracy, by an attacker that does not know the guard and by the strongest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..leak import leak_share
from ..report.plots import INK, SOFT, png, pyplot

# An audit with every attack in every form of knowledge: the newer one, once it is there.
SOURCES = ("claims/all-guards.json", "attacks-quick.json")
TENTH = 0.1  # of the leak: what papers promise to leave at most
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
    """For a slide: every guard is a line from what the papers' attackers find to what the strongest finds, with its name."""
    plt = pyplot()
    with plt.rc_context({"font.size": 13}):
        canvas, axes = plt.subplots(figsize=(11.5, 6.2))
        for number, one in enumerate(found):
            _draw(axes, one, plt.cm.tab10(number % 10))
        _names(axes, found, [plt.cm.tab10(number % 10) for number in range(len(found))])
        axes.scatter(
            [], [], s=110, facecolor="white", edgecolor=INK, lw=2.2, label="attackers that do not know the guard"
        )
        axes.scatter([], [], s=120, color=INK, label="the strongest attacker, which knows it")
        axes.set_xlabel("test accuracy (right is better)")
        axes.set_ylabel("share of the leak that is left (down is better)")
        axes.set_ylim(-0.04, 1.06)
        axes.grid(color="#eef2f6")
        axes.set_axisbelow(True)
        axes.axhline(TENTH, color=SOFT, lw=1.2, ls=(0, (4, 4)))
        axes.text(0.01, TENTH + 0.015, "a tenth of the leak", color=SOFT, transform=axes.get_yaxis_transform())
        axes.legend(loc="upper left", frameon=False)
        return png(canvas, plt)


def _draw(axes: Any, one: Mark, colour: Any) -> None:
    axes.plot([one.accuracy] * 2, [one.paper, one.strongest], color=colour, lw=2.4, alpha=0.55, zorder=2)
    axes.scatter(one.accuracy, one.paper, s=110, facecolor="white", edgecolor=colour, lw=2.2, zorder=3)
    axes.scatter(one.accuracy, one.strongest, s=120, color=colour, zorder=4)


def _names(axes: Any, found: Sequence[Mark], colours: Sequence[Any]) -> None:
    """Beside the full mark in the left half, which is empty; in the right one at the edge, with a thin line."""
    low, high = min(one.accuracy for one in found), max(one.accuracy for one in found)
    width = max(high - low, 0.05)
    axes.set_xlim(low - 0.06 * width, high + 0.42 * width)
    axes.set_xticks([tick for tick in axes.get_xticks() if low - 0.06 * width <= tick <= 1.0])
    left = [one.accuracy < high - width / 2 for one in found]
    order = sorted((place for place in range(len(found)) if not left[place]), key=lambda one: -found[one].strongest)
    heights = dict(zip(order, _spread([found[place].strongest for place in order]), strict=True))
    for place, one in enumerate(found):
        edge, height = high + 0.07 * width, heights.get(place, one.strongest)
        if left[place]:
            edge = one.accuracy + 0.02 * width
        else:
            axes.plot(
                [one.accuracy, edge], [one.strongest, height], color=colours[place], lw=0.8, alpha=0.5, zorder=1
            )
        axes.text(edge, height, f" {_name(one.guard)}", color=colours[place], va="center", fontsize=12)


def _spread(heights: Sequence[float], gap: float = 0.062) -> list[float]:
    """From the highest down, none nearer to the next than a line of text; the highest may rise above its mark."""
    told: list[float] = []
    for height in heights:
        told.append(min(height, told[-1] - gap) if told else height)
    lift = max(0.0, -min(told, default=0.0))
    return [height + lift for height in told]


def _name(guard: str) -> str:
    return "no guard" if guard == "none" else guard
