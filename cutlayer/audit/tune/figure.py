"""The front of a tune as a figure: leak against accuracy lost, bytes as colour."""

from collections.abc import Sequence
from typing import Any

from ..report.plots import INK, SOFT, png_and_svg, pyplot
from .budget import Budget
from .front import front
from .run import Search
from .trial import Tried


def figure(found: Search, budget: Budget, pick: str | None) -> tuple[bytes, bytes]:
    """Leak against accuracy lost, colour = bytes; hollow: out before the full attack, so it leaks at least that."""
    plt = pyplot()
    canvas, axes = plt.subplots(figsize=(8.6, 5.2))
    known = [one for one in found.tried if one.leak is not None and one.loss is not None]
    best = sorted(front(found.tried), key=lambda one: (one.loss, one.leak))
    edge = _edge(known, budget)
    scale, colours = plt.matplotlib.colors.LogNorm(*_range(found, known)), plt.get_cmap("viridis_r")
    _limits_drawn(axes, budget)
    steps = _stairs(best)
    if steps:
        axes.step(
            [one.loss for one in steps], [one.leak for one in steps], where="post", color="#b9d3ee", lw=5, zorder=1
        )
    for one in known:
        colour, x = colours(scale(one.bytes or 1.0)), min(one.loss, edge)  # type: ignore[type-var]
        axes.scatter(
            x, one.leak, s=46, facecolor=colour if one.whole else "white", edgecolor=colour, lw=1.4, zorder=3,
            marker="o" if x == one.loss else ">", clip_on=False,
        )  # fmt: skip
        if one.guard == pick:
            axes.scatter(x, one.leak, s=190, facecolor="none", edgecolor="#c0392b", lw=2, zorder=4)
    for number, one in enumerate(best, 1):
        place = min(one.loss, edge), one.leak  # type: ignore[type-var]
        axes.annotate(
            str(number),
            place,
            xytext=(-14 if place[0] == edge else 6, 5),
            textcoords="offset points",
            size=8,
            color=INK,
            zorder=5,
        )
    axes.set_xlabel("points of accuracy lost (left is better)")
    axes.set_ylabel("leak: share of what the unguarded cut gives away")
    axes.set_ylim(bottom=0)
    axes.set_xlim(right=edge)
    axes.grid(color="#eef2f6")
    axes.set_axisbelow(True)
    _marks_explained(canvas, plt, any(one.loss > edge for one in known), bool(steps), pick is not None)  # type: ignore[operator]
    _named(canvas, best)
    bar = canvas.colorbar(plt.cm.ScalarMappable(scale, colours), ax=axes, pad=0.03)
    bar.outline.set_visible(False)
    bar.set_label("bytes a sample on their way up")
    return png_and_svg(canvas, plt)


def _stairs(best: Sequence[Tried]) -> list[Tried]:
    """The front of the two figures that are drawn; others are on the whole front for their bytes."""
    return [one for place, one in enumerate(best) if all(one.leak < other.leak for other in best[:place])]  # type: ignore[operator]


def _edge(known: Sequence[Tried], budget: Budget) -> float:
    """Who loses more than anybody would have is drawn at the edge: the others would lie on top of each other."""
    most = max((one.loss for one in known if one.loss is not None), default=10.0)
    return max(1.0, min(most, 3 * max(budget.loss or 0.0, 10.0)))


def _limits_drawn(axes: Any, budget: Budget) -> None:
    said = {"size": 8, "color": SOFT, "textcoords": "offset points"}
    if budget.leak is not None:
        axes.axhline(budget.leak, color=SOFT, ls=(0, (4, 4)), lw=1, zorder=2)
        axes.annotate(
            f"--leak {budget.leak:g}",
            (1, budget.leak),
            (-4, 3),
            xycoords=("axes fraction", "data"),
            ha="right",
            **said,
        )
    if budget.loss is not None:
        axes.axvline(budget.loss, color=SOFT, ls=(0, (4, 4)), lw=1, zorder=2)
        place = {"xy": (budget.loss, 1), "xytext": (4, -10), "xycoords": ("data", "axes fraction")}
        axes.annotate(f"--loss {budget.loss:g}", **place, **said)


def _marks_explained(canvas: Any, plt: Any, beyond: bool, stairs: bool, picked: bool) -> None:
    line = plt.matplotlib.lines.Line2D

    def mark(shape: str, face: str, edge: str = SOFT, size: float = 7) -> Any:
        return line([], [], marker=shape, ls="", markerfacecolor=face, markeredgecolor=edge, markersize=size)

    shown = {
        "read by the full attack": mark("o", SOFT),
        "not read by it: it leaks at least this": mark("o", "white"),
    }
    if beyond:
        shown["loses more than is drawn"] = mark(">", SOFT)
    if stairs:
        shown["front"] = line([], [], color="#b9d3ee", lw=5)
    if picked:
        shown["chosen"] = mark("o", "none", "#c0392b", 11)
    canvas.legend(
        shown.values(),
        shown.keys(),
        frameon=False,
        loc="lower center",
        bbox_to_anchor=(0.45, 0.88),
        ncols=3,
        fontsize=8,
    )


def _named(canvas: Any, best: Sequence[Tried], columns: int = 2) -> None:
    """What the numbers on the front stand for, below."""
    rows = -(-len(best) // columns)
    if best:
        canvas.text(0.06, 0.005, "on the front: leak, points lost, bytes", size=8, color=SOFT, va="top")
    for place, one in enumerate(best):
        canvas.text(
            0.06 + 0.47 * (place // rows), -0.03 - 0.033 * (place % rows), f"{place + 1}  {_told_short(one)}", size=8,
            color=INK, va="top",
        )  # fmt: skip


def _told_short(one: Tried) -> str:
    name = one.guard if len(one.guard) <= 44 else f"{one.guard[:41]}…"
    return f"{name}: {one.leak:.2f}, {one.loss:+.1f}, {one.bytes:,.0f} B"


def _range(found: Search, known: Sequence[Tried]) -> tuple[float, float]:
    sizes = [one.bytes for one in known if one.bytes] or [found.open_cut.bytes]
    low, high = max(0.1, min(sizes)), max(sizes)
    return (low, high) if high > low else (low / 2, high * 2)
