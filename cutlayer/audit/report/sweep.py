"""Rate, accuracy and leakage of many guards in one picture: from the rows of an audit to points and their figure."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean
from typing import Any

from ..grades import TASK_LOST, UNKNOWN, UNSURE
from ..rows import Floors, Row, Verdict
from ..verdicts import guards_of, strongest, total_bytes, verdict
from .plots import INK, SOFT, png_and_svg, pyplot

# What is swept where nothing was asked for: fewer bits, fewer numbers, fewer of them sent, and two of these together.
USUAL = (
    "Quantize(bits={1,2,4,8})",
    "LightSplit(ratio={2,8,32})",
    "TopK(share={0.3,0.1,0.03})",
    "Chain(LightSplit(ratio=8), Quantize(bits={2,4,8}))",
)

_NUMBER = re.compile(r"(?<==)-?\d[\w.+-]*")
_MARKS = "osD^vP<>hX"
_WHITE = {UNKNOWN: "too little is known", TASK_LOST: "the task is lost"}  # what has no colour, and why


@dataclass(frozen=True)
class Point:
    """One guard. Accuracy and bytes are means over the seeds; leakage is that of the strongest valid attack."""

    guard: str
    family: str  # the same guard with other numbers; what all of a family share is written out
    setting: str  # the numbers it has of its own
    accuracy: float
    bytes_up: float
    bytes_down: float
    bytes_total: float  # with a sample's share of relayed weights and of exchanged decoders
    bits_per_feature: float | None
    bits_per_input_pixel: float | None
    uplink_ratio: float | None
    total_ratio: float | None
    attack: str
    ssim: float | None
    ncc: float | None
    leak: float | None  # share of the unguarded leak that is left; None: not known, or the task is lost
    grade: str
    front: bool = False  # no other guard has fewer bytes and at least this accuracy, or as many and more
    front_with_leakage: bool = False  # the same with leakage as the third figure


def points(rows: list[Row], floors: Floors, secrets: Sequence[str] = ()) -> list[Point]:
    """A point for each guard of an audit, in its order."""
    names = guards_of(rows)
    found = [_point(rows, verdict(rows, floors, guard, secrets), *_family(guard, names)) for guard in names]
    return [
        replace(
            one,
            front=not any(_beats(other, one) for other in found),
            front_with_leakage=not any(_beats(other, one, with_leak=True) for other in found),
        )
        for one in found
    ]


def _point(rows: list[Row], judged: Verdict, family: str, setting: str) -> Point:
    guard = judged.guard
    best = strongest(rows, guard)
    own = list({row["seed"]: row for row in rows if row["guard"] == guard}.values())
    rates = [row["rates"] for row in own]
    figures: dict[str, Any] = {
        name.replace(" ", "_"): None if rates[0][name] is None else mean(one[name] for one in rates)
        for name in ("bits per feature", "bits per input pixel", "uplink ratio", "total ratio")
    }
    return Point(
        guard, family, setting,
        accuracy=mean(row["accuracy"] for row in own),
        bytes_up=mean(row["bytes_up"] for row in own),
        bytes_down=mean(row["bytes_down"] for row in own),
        bytes_total=mean(total_bytes(row) for row in own),
        **figures,
        attack="" if best is None else best["attack"],
        ssim=None if best is None else best["value"],
        ncc=None if best is None else best["ncc"],
        # What weak attackers found is a lower bound, and so may be what was read of a network that learnt nothing.
        leak=None if judged.grade in UNSURE else judged.leak,
        grade=judged.grade,
    )  # fmt: skip


def _family(guard: str, names: Sequence[str]) -> tuple[str, str]:
    """`Quantize(bits=…)` and `4`: numbers that differ within a family are its setting, others belong to its name."""
    kin = [_NUMBER.findall(name) for name in names if _NUMBER.sub("", name) == _NUMBER.sub("", guard)]
    differs = [len(set(column)) > 1 for column in zip(*kin, strict=True)]
    own = _NUMBER.findall(guard)
    shown = iter("…" if other else number for other, number in zip(differs, own, strict=True))
    setting = ", ".join(number for other, number in zip(differs, own, strict=True) if other)
    return _NUMBER.sub(lambda _: next(shown), guard), setting


def _beats(other: Point, one: Point, with_leak: bool = False) -> bool:
    """Nowhere worse and somewhere better. A leak that is not known is taken for all of it."""
    ours, theirs = (
        (point.bytes_total, -point.accuracy, *((1.0 if point.leak is None else point.leak,) if with_leak else ()))
        for point in (one, other)
    )
    return all(a <= b for a, b in zip(theirs, ours, strict=True)) and theirs != ours


def table(found: list[Point]) -> bytes:
    """sweep.csv: a line a guard."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    writer.writerow(names)
    for point in found:
        writer.writerow(["" if (value := getattr(point, name)) is None else _cell(value) for name in names])
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else value


def figure(found: list[Point]) -> tuple[bytes, bytes]:
    """Accuracy against bytes, colour = leakage, a line for each family; as PNG and as SVG."""
    plt = pyplot()
    canvas, axes = plt.subplots(figsize=(10.4, 6.2))
    colours = plt.get_cmap("coolwarm")
    _draw_front(axes, found)
    families: dict[str, list[Point]] = {}
    for point in found:
        families.setdefault(point.family, []).append(point)
    for number, (family, members) in enumerate((name, those) for name, those in families.items() if name != "none"):
        members.sort(key=lambda point: point.bytes_total)
        across, up = [point.bytes_total for point in members], [point.accuracy for point in members]
        mark = _MARKS[number % len(_MARKS)]
        axes.plot(across, up, color=SOFT, lw=1.2, zorder=2)
        axes.plot([], [], color=SOFT, lw=1.2, marker=mark, mfc="white", mec=INK, ms=7, label=_wrapped(family))
        for point in members:
            _draw_point(axes, point, mark, 75, colours)
            axes.annotate(
                point.setting, (point.bytes_total, point.accuracy), xytext=(0, 8), textcoords="offset points",
                ha="center", size=8, color=INK, zorder=5,
            )  # fmt: skip
    for point in families.get("none", []):
        axes.axhline(point.accuracy, color=SOFT, lw=0.8, ls=(0, (4, 4)), zorder=1)
        _draw_point(axes, point, "*", 260, colours)
        axes.plot([], [], ls="", marker="*", mfc="white", mec=INK, ms=12, label="no guard")
    _finish(axes, found)
    bar = canvas.colorbar(plt.cm.ScalarMappable(plt.Normalize(0, 1), colours), ax=axes, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label("leakage: share of what the unguarded cut gives away")
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    return png_and_svg(canvas, plt)


def _draw_front(axes: Any, found: list[Point]) -> None:
    front = sorted((point for point in found if point.front), key=lambda point: point.bytes_total)
    axes.plot(
        [point.bytes_total for point in front], [point.accuracy for point in front],
        color="#cfe0f3", lw=9, solid_capstyle="round", solid_joinstyle="round", zorder=0,
        label="Pareto front of bytes and accuracy",
    )  # fmt: skip


def _draw_point(axes: Any, point: Point, mark: str, size: float, colours: Any) -> None:
    colour = "white" if point.leak is None else colours(min(1.0, point.leak))
    axes.scatter(
        point.bytes_total, point.accuracy, s=size, marker=mark, color=[colour], edgecolor=INK, lw=0.9, zorder=4
    )


def _finish(axes: Any, found: list[Point]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    spans = max(point.bytes_total for point in found) / min(point.bytes_total for point in found)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if spans < 1000 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bytes a training sample: all messages, both ways (left is better)")
    axes.set_ylabel("test accuracy (up is better)")
    axes.margins(x=0.06, y=0.1)
    axes.grid(color="#eef2f6", zorder=-1)
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.55, -0.12), ncols=2, frameon=False, fontsize=9)
    if unsure := [said for grade, said in _WHITE.items() if grade in {point.grade for point in found}]:
        axes.text(0.01, 0.01, f"white: {', or '.join(unsure)}", transform=axes.transAxes, color=SOFT, size=9)


def _wrapped(text: str, width: int = 52) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
