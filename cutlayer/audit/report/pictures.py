"""An audit's plots: accuracy against leakage, and what attackers made of what was sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..floors import blind_guess
from ..kinds import RECORDS, SERIES, TEXTS, of_floors, rebuilt
from ..result import Audit
from ..rows import picture_key
from ..verdicts import guards_of, strongest, total_bytes
from .plots import INK, SOFT, png, pyplot
from .row_plots import column_chart, curves
from .shown import SHOWN, counted, one_of_each, several_seeds, shown_rows


def rebuilt_pictures(audit: Audit) -> dict[str, bytes]:
    """What attackers made of what was sent, to look at: pictures, curves, or how well each column was read. Texts
    are in the report itself."""
    those = shown_rows(audit)
    if of_floors(audit.floors) is TEXTS:
        return {}
    if of_floors(audit.floors) is RECORDS:
        return {"columns.png": column_chart(those)} if those else {}
    if of_floors(audit.floors) is SERIES:
        return curves(audit.truth, those, audit.pictures, one_of_each(audit.labels))
    drawn = {"reconstructions.png": reconstructions(audit)}
    if (best := read_best(audit)) is not None:
        drawn["read-best.png"] = best
    return drawn


def tradeoff(audit: Audit) -> bytes:
    """Accuracy against leakage; the area of a mark is the bytes it costs. Numbered, so that 15 rows stay legible."""
    plt = pyplot()
    names = guards_of(audit.rows)
    many = len(names) > 8
    figure, axes = plt.subplots(figsize=(9.6, max(4.4, 0.3 * len(names))))
    kind = of_floors(audit.floors)
    floor = blind_guess(audit.floors, kind.statistics["value"])
    axes.axvspan(0, floor, color="#e9f3ec", lw=0)
    wide = floor > 0.2  # else the words begin at the axis, and do not lie across it
    axes.text(
        floor / 2 if wide else 0.008,
        0.03,
        "no better than\nguessing",
        transform=axes.get_xaxis_transform(),
        ha="center" if wide else "left",
        color=SOFT,
        size=9,
    )
    # Numbers are those of the table: a guard without a valid attack has one too, and no mark.
    found = [(number, strongest(audit.rows, name)) for number, name in enumerate(names)]
    numbered = [(number, row) for number, row in found if row is not None]
    known = [row for _, row in numbered]
    most = max((total_bytes(row) for row in known), default=1.0)
    for number, row in numbered:
        total = total_bytes(row)
        colour = "#c2452d" if row["guard"] == "none" else plt.cm.viridis(0.1 + 0.75 * number / max(1, len(names) - 1))
        kilobytes = f"{total / 1000:.1f} kB"
        label = f"{number}  {_short(row['guard'], 40)}  {kilobytes}"
        if not many:
            label = f"{number}  {wrapped(row['guard'], 34)}\n     {kilobytes} a sample"
        axes.scatter(
            row["value"],
            row["accuracy"],
            s=(60 if many else 80) + (350 if many else 900) * total / most,
            color=colour,
            alpha=0.55,
            lw=0,
            label=label,
        )
        axes.text(
            row["value"], row["accuracy"], str(number), ha="center", va="center", size=9, color=INK, weight="bold"
        )
    accuracies = [row["accuracy"] for row in known] or [0.0, 1.0]
    middle, half = (min(accuracies) + max(accuracies)) / 2, max(0.03, (max(accuracies) - min(accuracies)) * 0.9)
    axes.set_ylim(max(0.0, middle - half), min(1.03, middle + half))
    axes.set_xlim(min(0.0, *(row["value"] - 0.05 for row in known), 0.0), 1.05)
    axes.set_xlabel(f"leakage: {kind.said} of the best reconstruction (left is better)")
    axes.set_ylabel("test accuracy (up is better)")
    if not known:
        axes.text(0.5, 0.5, "no valid attack", transform=axes.transAxes, ha="center", color=SOFT, size=14)
        return png(figure, plt)
    legend = axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelspacing=0.5 if many else 0.9
    )
    for handle in legend.legend_handles:
        handle.set_sizes([60])
    return png(figure, plt)


def reconstructions(audit: Audit) -> bytes:
    """Originals on top, then what the strongest attacker makes of each guard's messages.

    Every seed has private images of its own, so all rows and figures here are those of the originals' seed.
    """
    original = f"original, seed {audit.seed}" if several_seeds(audit) else "original"
    lines: list[tuple[str, Tensor]] = [(original, audit.truth)]
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    for guard in guards_of(audit.rows):
        row = counted(own, guard)
        if row is None:
            continue
        mark = f"SSIM {row['value']:.2f}" if row["valid"] else "attack failed"
        lines.append((f"{wrapped(guard)}\n{mark}", audit.pictures[picture_key(row)]))
    return grid(lines, audit.labels)


def read_best(audit: Audit) -> bytes | None:
    """Of each guard the ten images that its strongest attacker read best, below their originals: a mean hides them.

    None where scores of single images were not kept.
    """
    lines: list[tuple[str, Tensor]] = []
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    for guard in guards_of(audit.rows):
        row = counted(own, guard)
        if row is None or not row.get("worst"):
            continue
        numbers = [number for number, _ in row["worst"]][:SHOWN]
        numbers += numbers[-1:] * (SHOWN - len(numbers))
        reached = f"SSIM {row['worst'][-1][1]:.2f} to {row['worst'][0][1]:.2f}"
        lines.append((f"{wrapped(guard)}\noriginal", audit.truth[numbers]))
        lines.append((reached if row["valid"] else "attack failed", audit.pictures[picture_key(row)][numbers]))
    return grid(lines, torch.arange(SHOWN)) if lines else None


def rows_drawn(
    rows: Sequence[Mapping[str, Any]], truth: Tensor, labels: Tensor, guesses: dict[str, Tensor]
) -> dict[str, bytes]:
    """Curves, or columns, of an attack on a recording: one guard, so attacks are told apart by their names."""
    told: list[Any] = [{**row, "guard": row["attack"], "attack": ""} for row in rows if rebuilt(row)]
    if not told:
        return {}
    if not truth.is_floating_point():
        return {}
    if truth.dim() == 2:
        return {"columns.png": column_chart(told)}
    named = {picture_key(row): guesses[row["guard"]] for row in told}
    return curves(truth, told, named, one_of_each(labels))


def grid(lines: list[tuple[str, Tensor]], labels: Tensor) -> bytes:
    """Rows of pictures with a label each; where attacks saw fewer images, only those that all saw."""
    plt = pyplot()
    shown = min(len(images) for _, images in lines)
    chosen = one_of_each(labels[:shown])[:SHOWN]
    wide = len(chosen) * 0.85 + 2.7
    figure, cells = plt.subplots(len(lines), len(chosen), figsize=(wide, len(lines) * 0.9), squeeze=False)
    for (label, images), line in zip(lines, cells, strict=True):
        for index, axes in zip(chosen, line, strict=True):
            picture = images[index].clamp(0, 1).permute(1, 2, 0).squeeze(-1)
            axes.imshow(picture, cmap="gray" if picture.dim() == 2 else None, vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
        line[0].text(-0.15, 0.5, label, transform=line[0].transAxes, ha="right", va="center", size=10, color=INK)
    figure.subplots_adjust(left=2.6 / wide, right=0.995, top=0.99, bottom=0.01, wspace=0.06, hspace=0.08)
    return png(figure, plt, tight=False)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def wrapped(text: str, width: int = 28) -> str:
    """In lines: broken at spaces, and where a word (a file's name) is too long for one, behind a mark in it."""
    import textwrap

    lines = []
    for line in textwrap.wrap(text, width, break_long_words=False):
        while len(line) > width:
            at = max(line.rfind(mark, 0, width) for mark in "/:(") + 1 or width
            lines.append(line[:at])
            line = line[at:]
        lines.append(line)
    return "\n".join(lines)
