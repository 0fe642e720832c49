"""A comparison as files: compare.json, compare.csv, one self-contained report.html, and its charts as PNG."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ... import __version__
from ...core.files import write_together
from ...training.facts.made import made
from ..report.page import millions, page
from ..report.plots import SOFT, heat, png, pyplot
from ..split_buys import best_in_words
from ..words import signed
from .run import SCHEMA, summaries
from .variant_text import Variant

MIB = 2**20
MOST_CLIENT_CHARTS = 3  # variants may share the data out in different ways; more are in compare.json
_LINES = ("-", "--", ":", "-.")
_COLUMNS = (
    "variant", "seed", "accuracy", "accuracy_last", "val", "failed", "best_epoch", "epochs", "steps", "seconds",
    "bytes", "bytes_up", "bytes_down", "bytes_weights", "rejected", "rule_memory",
    "client_macs", "client_parameters",
)  # fmt: skip

Row = dict[str, Any]


def as_data(
    plan: str, rows: Sequence[Row], command: str, left_out: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What compare.json holds. `left_out`: which of the clients alone cannot be, and why."""
    lines = summaries(rows)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "plan": plan,
        "variants": lines,
        "rows": list(rows),
        "left_out": dict(left_out or {}),
        "split_buys": best_in_words(lines),
    }


def write(data: dict[str, Any], chosen: Sequence[Variant], folder: Path) -> None:
    """All files of `as_data` at once: none takes its name before the last one is whole."""
    rows = data["rows"]
    pictures = {"convergence.png": convergence(rows)}
    if (drawn := sensitivity(chosen, rows)) is not None:
        pictures["sensitivity.png"] = drawn
    pictures |= {f"clients{number or ''}.png": drawn for number, drawn in enumerate(client_charts(rows))}
    files = {
        "compare.json": json.dumps(data, indent=1).encode(),
        "compare.csv": table(rows),
        "report.html": html(data, pictures).encode(),
        **pictures,
    }
    write_together(folder, files)


def table(rows: Sequence[Row]) -> bytes:
    """compare.csv: a line a run."""
    text = io.StringIO()
    fair = ("best", "worst", "worst_tenth", "spread", "deviation")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"clients_{name}" for name in fair)])
    for row in rows:
        told = row.get("fairness") or {}
        writer.writerow(
            [*("" if row[name] is None else row[name] for name in _COLUMNS), *(told.get(n, "") for n in fair)]
        )
    return text.getvalue().encode()


def html(data: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """The report. Everything is inside the one file."""
    return page(
        "compare.html.j2",
        pictures,
        data=data,
        made=made(sum(row["seconds"] for row in data["rows"])),
        lines=data["variants"],
        client_images=[image for name, image in pictures.items() if name.startswith("clients")],
        loss_known=_loss_known(data["rows"]),
        lost=[row for row in data["rows"] if row["failed"]],
        rejected=[(row["variant"], row["seed"], one) for row in data["rows"] for one in row["why_rejected"]],
        measured="Validation" if _validated(data["rows"]) else "Test",
        mib=MIB,
        size=size,
        over_alone=over_alone,
    )


def size(count: float) -> str:
    """Bytes for a reader."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:.0f} B"


def print_table(rows: Sequence[Row]) -> None:
    """The table for a terminal."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, header_style="bold")
    columns = (
        "accuracy",
        "over alone",
        "best client",
        "worst client",
        "steps",
        "crossed",
        "client MMAC",
        "seconds",
        "rule keeps",
    )
    for column in ("variant", *columns):
        shown.add_column(column, justify="left" if column == "variant" else "right")
    for line in summaries(rows):
        shown.add_row(
            line["variant"], reached(line), over_alone(line), share(line["best_client"]), share(line["worst_client"]),
            f"{line['steps']:,}", size(line["bytes"]), millions(line["client_macs"]), f"{line['seconds']:.1f}",
            size(line["rule_memory"]),
        )  # fmt: skip
    # Where nobody watches (a log, a pipe) nothing has to be squeezed into 80 columns.
    console = Console(file=sys.stderr, width=None if sys.stderr.isatty() else 140)
    console.print(shown)


def reached(line: dict[str, Any]) -> str:
    """Accuracy with its spread over the seeds, and how many of them were lost."""
    if line["accuracy"] is None:
        return "lost"
    text = f"{line['accuracy']:.4f}" + (f" ± {line['deviation']:.4f}" if line["seeds"] - line["lost"] > 1 else "")
    if "perplexity" in line:
        text += f", perplexity {line['perplexity']:.2f}"
    return text + (f" ({line['lost']} of {line['seeds']} lost)" if line["lost"] else "")


def over_alone(line: dict[str, Any]) -> str:
    """Points of accuracy above the client alone."""
    return "-" if line["over_alone"] is None else signed(line["over_alone"])


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# ------------------------------------------------------------------------------ charts
def _loss_known(rows: Sequence[Row]) -> bool:
    return any("val_loss" in epoch for row in rows for epoch in row["history"])


def curves(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """For each variant a point an epoch: mean accuracy, lowest and highest over the seeds, mean bytes so far and mean
    validation loss (None: not known)."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in dict.fromkeys(row["variant"] for row in rows):
        runs = [row["history"] for row in rows if row["variant"] == name]
        points = found.setdefault(name, [])
        for place in range(max((len(one) for one in runs), default=0)):
            epochs = [one[place] for one in runs if place < len(one)]
            reached = [epoch.get("val", epoch.get("test")) for epoch in epochs]
            lost = [epoch["val_loss"] for epoch in epochs if "val_loss" in epoch]
            points.append(
                {
                    "epoch": epochs[0]["epoch"],
                    "accuracy": mean(reached),
                    "low": min(reached),
                    "high": max(reached),
                    "bytes": mean(epoch["bytes"] for epoch in epochs),
                    "loss": mean(lost) if lost else None,
                }
            )
    return found


def convergence(rows: Sequence[Row]) -> bytes:
    """Accuracy against epochs and against what crossed, with a band from the worst seed to the best; validation loss
    against epochs, where it is known."""
    plt = pyplot()
    found = curves(rows)
    canvas, (left, right, *third) = plt.subplots(1, 2 + _loss_known(rows), figsize=(11.5, 4.2))
    right.sharey(left)
    for number, (name, points) in enumerate(found.items()):
        look = {"color": plt.cm.tab10(number % 10), "ls": _LINES[number // 10 % len(_LINES)], "lw": 1.8}
        if points and not points[-1]["bytes"]:  # nothing crosses, so what it ends with holds for any number of bytes
            right.axhline(points[-1]["accuracy"], **{**look, "lw": 1.0})
        for axes, across in (
            (left, [point["epoch"] for point in points]),
            (right, [point["bytes"] / MIB for point in points]),
        ):
            up = [point["accuracy"] for point in points]
            axes.plot(across, up, label=_wrapped(name), marker="o" if len(points) == 1 else None, **look)
            low, high = [point["low"] for point in points], [point["high"] for point in points]
            axes.fill_between(across, low, high, color=look["color"], alpha=0.15, lw=0)
        for axes in third:
            known = [(point["epoch"], point["loss"]) for point in points if point["loss"] is not None]
            axes.plot(*zip(*known, strict=True), marker="o" if len(known) == 1 else None, **look) if known else None
    for axes in third:
        axes.set_ylabel("validation loss")
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel(f"{'validation' if _validated(rows) else 'test'} accuracy")
    left.set_xlabel("epoch")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel("MiB crossed, all messages of training, both ways")
    if _spans(point["bytes"] for points in found.values() for point in points) > 50:
        right.set_xscale("log")
    for axes in (left, right, *third):
        axes.grid(color="#eef2f6")
        axes.set_axisbelow(True)
    canvas.tight_layout()
    canvas.legend(
        *left.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False,
        fontsize=9,
    )  # fmt: skip
    return png(canvas, plt)


def sensitivity(chosen: Sequence[Variant], rows: Sequence[Row]) -> bytes | None:
    """Accuracy against the number in braces, a line for each text that had them; None where there is none."""
    families: dict[str, dict[str, list[Variant]]] = {}
    for one in chosen:
        if one.setting is not None:
            families.setdefault(one.axis, {}).setdefault(one.family, []).append(one)
    if not families:
        return None
    plt = pyplot()
    validated = _validated(rows)
    canvas, panels = plt.subplots(1, len(families), figsize=(6.2 * len(families), 4.4), squeeze=False)
    for axes, (axis, members) in zip(panels[0], families.items(), strict=True):
        for number, (family, those) in enumerate(members.items()):
            _draw_family(axes, plt.cm.tab10(number % 10), family, those, rows, "val" if validated else "accuracy")
        settings = [one.setting for those in members.values() for one in those if one.setting is not None]
        if min(settings) > 0 and _spans(settings) >= 4:
            axes.set_xscale("log")
        if len(marks := sorted(set(settings))) <= 10:
            axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
            axes.set_xticks([], minor=True)
        axes.set_xlabel(axis)
        axes.set_ylabel(f"{'validation' if validated else 'test'} accuracy")
        axes.grid(color="#eef2f6")
        axes.set_axisbelow(True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)
    return png(canvas, plt)


def _draw_family(
    axes: Any, colour: Any, family: str, those: Sequence[Variant], rows: Sequence[Row], figure: str
) -> None:
    across, up, spread = [], [], []
    for one in sorted(those, key=lambda one: one.setting or 0.0):
        own = [row[figure] if row["failed"] is None else None for row in rows if row["variant"] == one.name]
        known = [value for value in own if value is not None]
        if known:
            across.append(one.setting)
            up.append(mean(known))
            spread.append(stdev(known) if len(known) > 1 else 0.0)
        if len(known) < len(own):
            axes.plot(one.setting, 0.02, "x", color=colour, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.errorbar(across, up, yerr=spread, color=colour, marker="o", lw=1.6, capsize=3, label=_wrapped(family))


def client_charts(rows: Sequence[Row]) -> list[bytes]:
    """Who holds what and how each variant serves it; a chart for every way the data are shared out, first seed."""
    seed = rows[0]["seed"] if rows else 0
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["seed"] == seed and row.get("clients"):
            groups.setdefault(json.dumps([one["classes"] for one in row["clients"]]), []).append(row)
    many = [those for those in groups.values() if len(those[0]["clients"]) > 1]
    return [_client_chart(those) for those in many[:MOST_CLIENT_CHARTS]]


def _client_chart(rows: Sequence[Row]) -> bytes:
    plt = pyplot()
    clients = rows[0]["clients"]
    held = [one["classes"] for one in clients]
    served = [[float("nan") if row["clients"][place]["accuracy"] is None else row["clients"][place]["accuracy"]
               for row in rows] for place in range(len(clients))]  # fmt: skip
    wide = (max(2.5, 0.32 * len(held[0])), max(1.2, 0.5 * len(rows)))
    tall = min(9.0, max(2.4, 0.26 * len(clients)))
    canvas, (left, right) = plt.subplots(
        1, 2, figsize=(sum(wide) + 3.0, tall), gridspec_kw={"width_ratios": wide}, sharey=True
    )
    heat(left, held, "samples of each class", "Blues", write=len(clients) <= 20 and len(held[0]) <= 20)
    left.set_xlabel("class")
    left.set_ylabel("client")
    heat(right, served, "expected accuracy", "RdYlGn", high=1.0)
    right.set_xticks(range(len(rows)), [_short(row["variant"]) for row in rows], rotation=90, fontsize=8)
    if all(one["accuracy"] is None for row in rows for one in row["clients"]):
        right.text(0.5, 0.5, "unknown", transform=right.transAxes, ha="center", color=SOFT)
    return png(canvas, plt)


def _validated(rows: Sequence[Row]) -> bool:
    """Whether samples were held out from training, in every run: settings may be chosen by them."""
    return all("val" in epoch for row in rows for epoch in row["history"])


def _spans(values: Any) -> float:
    known = [value for value in values if value > 0]
    return max(known) / min(known) if known else 1.0


def _short(text: str, width: int = 32) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, width: int = 60) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
