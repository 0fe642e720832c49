"""An audit as files: audit.json, one self-contained report.html, and its plots as PNG."""

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ... import __version__
from ...core.files import write_together
from ...engines.tracking import Tracking
from ...training.facts.compression import RATES, compared, crossing, in_units
from ...training.facts.made import made
from ...training.facts.privacy import lines
from ..floors import blind_guess
from ..grades import GRADES, OPEN, TASK_LOST, UNKNOWN, WIDE_GAP
from ..kinds import IMAGES, RECORDS, SERIES, TEXTS, of_floors, rebuilt
from ..matrix import Audit
from ..rows import AuditFile, Bought, Row, Verdict, picture_key
from ..split_buys import bought
from ..split_buys import in_words as buys_in_words
from ..split_buys import over_seeds as alone_over_seeds
from ..verdicts import by_form, flags, guards_of, over_seeds, strongest, total_bytes
from ..words import floor_name, percents, secret_name, signed
from ..words_told import in_words as words_told
from .detectors import in_words, leak_plot, metered, meters, missed, noticed_poison, picture_floor, servers, watchdogs
from .plots import INK, SOFT, png, pyplot
from .row_plots import best_records, column_chart, column_table, curves
from .seen import Strip, alt_texts, strips
from .sentences import sentences
from .sweep import figure, points, table
from .tidy import without_empty_columns

SHOWN = 10  # pictures in a line of the grid
FEW = 6  # guards that are shown as cards, in the order of the audit; more are ranked


def write(audit: Audit, folder: Path, command: str, sweep: bool = False) -> None:
    """All files at once: none takes its name before the last one is whole.

    A `sweep` has one more figure and the table behind it.
    """
    if not audit.rows:
        reasons = dict.fromkeys(one["why"] for one in audit.not_tried)
        raise ValueError(f"no attack could be tried, so there is nothing to report: {'; '.join(reasons)}")
    pictures = {"tradeoff.png": tradeoff(audit), **rebuilt_pictures(audit)}
    files: dict[str, bytes] = {}
    if (course := leak_plot(audit.rows)) is not None:
        pictures["leakmeter.png"] = course
    if sweep:
        found = points(audit.rows, audit.floors, audit.secrets)
        pictures["sweep.png"], files["sweep.svg"] = figure(found)
        files["sweep.csv"] = table(found)
    files |= {
        "audit.json": json.dumps(as_data(audit, command), indent=1).encode(),
        "report.html": html(audit, pictures, command).encode(),
        **pictures,
    }
    write_together(folder, files)


def track(audit: Audit, folder: Path, names: Sequence[str]) -> None:
    """The rows and figures of an audit that was written, as events for whoever follows runs."""
    told = Tracking(folder, names)
    told("start", plan=repr(audit.plan))
    for row in audit.rows:
        figures = {name: row[name] for name in ("accuracy", "bytes_up", "bytes_down", "value", "seconds")}
        told("row", guard=row["guard"], attack=row["attack"], seed=row["seed"], step=row["seed"], **figures)
    for judged in audit.verdicts():
        told("row", guard=judged.guard, grade=judged.graded, leak=judged.leak)
    for path in sorted(folder.glob("*.png")):
        told("picture", name=path.stem, path=path)
    told("result", seconds=computing_seconds(audit))


def rebuilt_pictures(audit: Audit) -> dict[str, bytes]:
    """What attackers made of what was sent, to look at: pictures, curves, or how well each column was read. Texts
    are in the report itself."""
    counted = _shown_rows(audit)
    if of_floors(audit.floors) is TEXTS:
        return {}
    if of_floors(audit.floors) is RECORDS:
        return {"columns.png": column_chart(counted)} if counted else {}
    if of_floors(audit.floors) is SERIES:
        return curves(audit.truth, counted, audit.pictures, _one_of_each(audit.labels))
    drawn = {"reconstructions.png": reconstructions(audit)}
    if (best := read_best(audit)) is not None:
        drawn["read-best.png"] = best
    return drawn


def _shown_rows(audit: Audit) -> list[Row]:
    """The strongest attacker of each guard under the seed whose truth is kept."""
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    return [row for guard in guards_of(audit.rows) if (row := _counted(own, guard)) is not None]


def as_data(audit: Audit, command: str) -> AuditFile:
    """What audit.json holds."""
    return {
        **audit.as_dict(),
        "verdicts": [asdict(one) for one in audit.verdicts()],
        "flags": flags(audit.rows, audit.verdicts()),
        "leak_meters": meters(audit.rows),
        "noticed": noticed(audit),
        "split_buys": split_buys(audit),
        "split_buys_words": buys_in_words(split_buys(audit), audit.alone),
        "version": __version__,
        "made": made(computing_seconds(audit)),
        "command": command,
    }


def noticed(audit: Audit) -> list[str]:
    """What detectors noticed, in sentences."""
    return in_words(audit.rows, audit.poisoned, audit.floors)


def split_buys(audit: Audit) -> list[Bought]:
    """What the split buys over a client alone, guard by guard."""
    return bought(audit.rows, audit.alone, audit.verdicts())


def html(audit: Audit, pictures: dict[str, bytes], command: str) -> str:
    """The report. Everything is inside the one file."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cutlayer.audit.report", "templates"), autoescape=True, undefined=StrictUndefined
    )
    names = guards_of(audit.rows)
    best_rows = {name: row for name in names if (row := strongest(audit.rows, name)) is not None}
    verdicts = audit.verdicts()
    guards = [{"number": number, "guard": one.guard, "verdict": one} for number, one in enumerate(verdicts)]
    counted = [row for name in names if (row := _counted(audit.rows, name)) is not None]
    sliding = _strips(audit) if of_floors(audit.floors) is IMAGES else []
    page = environment.get_template("report.html.j2").render(
        audit=audit,
        kind=(kind := of_floors(audit.floors)),
        columns=column_table(audit.rows, best_rows, audit.floors) if kind is RECORDS else None,
        named=audit.columns,
        floor_name=floor_name,
        read=sentences(audit.truth, _shown_rows(audit), audit.pictures, audit.words, _one_of_each(audit.labels))
        if kind is TEXTS
        else None,
        records=best_records(audit.truth, _shown_rows(audit), audit.pictures, audit.columns),
        guards=guards,
        ranked=sorted(guards, key=lambda item: _rank(item["verdict"])) if len(guards) > FEW else guards,
        few=len(guards) <= FEW,
        secrets=list(dict.fromkeys((one.secret, one.target) for judged in verdicts for one in judged.secrets)),
        best=best_rows,
        flags=flags(audit.rows, verdicts),
        costs={name: _cost(audit.rows, name) for name in names},
        grades=GRADES,
        percents=percents,
        signed=signed,
        images={name.removesuffix(".png"): base64.b64encode(png).decode() for name, png in pictures.items()},
        command=command,
        total_bytes=total_bytes,
        claims={row["guard"]: lines(row["privacy"]) for row in audit.rows if row["guard"] != "none"},
        counted=counted,
        alt=alt_texts(counted, kind),
        strips=sliding,
        shown=SHOWN,
        made=made(computing_seconds(audit)),
        pictured=[row for row in audit.rows if rebuilt(row)],
        watchdogs=watchdogs(audit.rows),
        missed=missed(audit.rows, audit.floors),
        picture_floor=picture_floor(audit.floors),
        meters=meters(audit.rows),
        metered=metered(audit.rows),
        servers=servers(audit.rows, audit.poisoned),
        noticed_poison=noticed_poison(audit.rows, audit.poisoned),
        bought=split_buys(audit),
        buys=buys_in_words(split_buys(audit), audit.alone),
        alone=alone_over_seeds(audit.alone),
        others=[row for row in audit.rows if not rebuilt(row)],
        several=len(audit.rows) > len(guards),
        several_seeds=_several_seeds(audit),
        by_form=[forms for name in names for forms in by_form(audit.rows, name)],
        wide_gap=WIDE_GAP,
        rate_names=RATES,
        crossing=crossing,
        compared=compared,
        in_units=in_units,
        words_told=words_told,
        measured=audit.rows[0]["rates"]["total ratio"] is not None,
    )
    return without_empty_columns(page)


def computing_seconds(audit: Audit) -> float:
    """What its trainings and attacks took together, wherever and however many at once."""
    trainings = {(row["guard"], row["seed"]): row["train_seconds"] for row in audit.rows}
    alone = sum(one["train_seconds"] or 0.0 for one in audit.alone)
    return sum(trainings.values()) + sum(row["seconds"] for row in audit.rows) + alone


def _strips(audit: Audit) -> list[Strip]:
    """The pictures of the grid once more, to slide between original and reconstruction."""
    rows = _shown_rows(audit)
    rebuilt_of = {row["guard"]: audit.pictures[picture_key(row)] for row in rows}
    fewest = min((len(pictures) for pictures in rebuilt_of.values()), default=0)
    return strips(rows, audit.truth, rebuilt_of, _one_of_each(audit.labels[:fewest])[:SHOWN])


def _counted(rows: list[Row], guard: str) -> Row | None:
    """The row of a guard; where no attack on it is valid, the first one, which is shown as failed."""
    tried = [row for row in rows if row["guard"] == guard and rebuilt(row)]
    return strongest(rows, guard) or next(iter(tried), None)


def _cost(rows: list[Row], guard: str) -> dict[str, float]:
    """Accuracy, and the bytes a sample costs: means over the seeds."""
    own = [row for row in rows if row["guard"] == guard]
    return {"accuracy": over_seeds(own, lambda row: row["accuracy"]), "bytes": over_seeds(own, total_bytes)}


def _several_seeds(audit: Audit) -> bool:
    return len({row["seed"] for row in audit.rows}) > 1


def _rank(judged: Verdict) -> tuple[bool, float]:
    """For ranking: the least leakage first, and last of what nothing, or nothing good, can be said."""
    unsure = judged.grade in (UNKNOWN, TASK_LOST)
    return unsure, judged.leak if judged.leak is not None else float("inf")


def print_table(audit: Audit) -> None:
    """The table for a terminal."""
    from rich.console import Console
    from rich.table import Table

    verdicts = audit.verdicts()
    names = list(dict.fromkeys(secret_name(one) for judged in verdicts for one in judged.secrets))
    several = names if len(names) > 1 else []
    table = Table(box=None, header_style="bold")
    kind = of_floors(audit.floors)
    own = OWN_FIGURES[kind.secret]
    figures = ("accuracy", "over alone", kind.said, "95 %", "90th pct.", *own, "bytes up", "down")
    table.add_column("guard", overflow="fold")
    for column in (*figures, *several, "verdict"):
        table.add_column(column, justify="right" if column in figures else "left")
    points, blank = {one["guard"]: signed(one["points"]) for one in split_buys(audit)}, [""] * len(several)
    for judged in verdicts:
        row = _counted(audit.rows, judged.guard)
        if row is None:
            continue
        ends = row.get("interval", {}).get("value")
        accuracy = _cost(audit.rows, judged.guard)["accuracy"]
        sure = "-" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
        table.add_row(
            judged.guard, f"{accuracy:.3f}", points.get(judged.guard, "-"), f"{row['value']:.3f}", sure,
            _figure(cast(Mapping[str, Any], row).get(kind.statistics["p90"])),
            *(tell({**row, "identified": _identified(judged)}) for tell in own.values()),
            f"{row['bytes_up']:,.0f}", f"{row['bytes_down']:,.0f}",
            *(_in_column(judged, name) for name in several), judged.graded,
        )  # fmt: skip
    for one in alone_over_seeds(audit.alone):
        told = "nothing leaves" if one["accuracy"] is not None else "not possible"
        table.add_row(
            one["name"], _figure(one["accuracy"]), *[""] * (4 + len(own)), "0", "0", *blank, told, style="dim"
        )
    for name, floor in audit.floors.items():
        reached = floor.get(kind.statistics["value"], floor["ssim"])
        table.add_row(
            floor_name(name, kind), "", "", _figure(reached), "", _figure(floor.get(kind.statistics["p90"])),
            *(tell(floor) for tell in own.values()), "", "", *blank, "", style="dim",
        )  # fmt: skip
    # Where nobody watches (a log, a pipe) nothing has to be squeezed into 80 columns.
    console = Console(file=sys.stderr, width=None if sys.stderr.isatty() else 160 + 24 * len(several))
    console.print(table)
    for sentence in buys_in_words(split_buys(audit), audit.alone):
        console.print(sentence, highlight=False)
    for one in alone_over_seeds(audit.alone):
        if one["accuracy"] is None:
            console.print(f"no {one['name']}: {one['why_none']}", style="dim", highlight=False)
    if (others := _other_secrets(audit.rows)) is not None:
        console.print(others)
    if sound := dict.fromkeys(name for judged in verdicts for one in judged.secrets for name in one.rests_on):
        console.print(f"verdicts rest on {', '.join(sound)}", style="dim", highlight=False)
    if untried := verdicts[0].untried:
        console.print(f"not tried: {', '.join(untried)}", style="dim", highlight=False)
    for flag in dict.fromkeys([*flags(audit.rows, verdicts), *(one for judged in verdicts for one in judged.flags)]):
        console.print(f"note: {flag}", highlight=False)
    if audit.lpips_missing and kind is IMAGES:
        console.print(f"LPIPS: {audit.lpips_missing}", style="dim", highlight=False)


def _other_secrets(rows: list[Row]) -> Any:
    """A line for every attack that makes no pictures; None: there are none."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("guard", "attack", "secret", "reached", "95 %", "chance"):
        table.add_column(column, justify="left" if column in ("guard", "attack", "secret") else "right")
    for row in rows:
        if not rebuilt(row):
            low, high = row["interval"]["value"]
            told = (f"{row['value']:.3f}", f"{low:.2f} to {high:.2f}", f"{row['chance']:.3f}")
            table.add_row(row["guard"], row["attack"], row["secret"], *told, style="" if row["valid"] else "dim")
    return table if table.row_count else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _identified(judged: Verdict) -> float | None:
    """The share of pictures that still tell which image they are of, by the attacker who makes most of them."""
    return next((one.identified for one in judged.secrets if one.secret == "images"), None)


def _best_column(figures: Mapping[str, Any]) -> str:
    told = figures.get("columns")
    return f"{told[0]['name']} {told[0]['skill']:.2f}" if told else ""


# What the terminal's table has of each kind besides, from a row or a floor.
OWN_FIGURES: dict[str, dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "images": {
        "identified": lambda figures: _figure(figures.get("identified")),
        "PSNR": lambda figures: f"{figures['psnr']:.1f}",
        "NCC": lambda figures: f"{figures['ncc']:.3f}",
        "LPIPS": lambda figures: _figure(figures["lpips"]),
    },
    "records": {"best-read column": _best_column},
    "series": {"spectral error": lambda figures: _figure(figures["spectral_error"])},
    "texts": {
        "ROUGE-L": lambda figures: _figure(figures["rouge_l"]),
        "names": lambda figures: _figure(figures["names_found"]),
    },
}


def _in_column(judged: Verdict, name: str) -> str:
    """The grade of one secret, and how much of its leak is left."""
    one = next((one for one in judged.secrets if secret_name(one) == name), None)
    if one is None or one.leak is None or one.grade == OPEN:
        return "-" if one is None else one.graded
    return f"{one.graded}, {100 * one.leak:.0f} %"


def tradeoff(audit: Audit) -> bytes:
    """Accuracy against leakage; the area of a mark is the bytes it costs. Numbered, so that 15 rows stay legible."""
    plt = pyplot()
    names = guards_of(audit.rows)
    many = len(names) > 8
    figure, axes = plt.subplots(figsize=(9.6, max(4.4, 0.3 * len(names))))
    kind = of_floors(audit.floors)
    floor = blind_guess(audit.floors, kind.statistics["value"])
    axes.axvspan(0, floor, color="#e9f3ec", lw=0)
    axes.text(
        floor / 2,
        0.03,
        "no better than\nguessing",
        transform=axes.get_xaxis_transform(),
        ha="center",
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
            label = f"{number}  {_wrapped(row['guard'], 34)}\n     {kilobytes} a sample"
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
    original = f"original, seed {audit.seed}" if _several_seeds(audit) else "original"
    lines: list[tuple[str, Tensor]] = [(original, audit.truth)]
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    for guard in guards_of(audit.rows):
        row = _counted(own, guard)
        if row is None:
            continue
        mark = f"SSIM {row['value']:.2f}" if row["valid"] else "attack failed"
        lines.append((f"{_wrapped(guard)}\n{mark}", audit.pictures[picture_key(row)]))
    return grid(lines, audit.labels)


def read_best(audit: Audit) -> bytes | None:
    """Of each guard the ten images that its strongest attacker read best, below their originals: a mean hides them.

    None where scores of single images were not kept.
    """
    lines: list[tuple[str, Tensor]] = []
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    for guard in guards_of(audit.rows):
        row = _counted(own, guard)
        if row is None or not row.get("worst"):
            continue
        numbers = [number for number, _ in row["worst"]][:SHOWN]
        numbers += numbers[-1:] * (SHOWN - len(numbers))
        reached = f"SSIM {row['worst'][-1][1]:.2f} to {row['worst'][0][1]:.2f}"
        lines.append((f"{_wrapped(guard)}\noriginal", audit.truth[numbers]))
        lines.append((reached if row["valid"] else "attack failed", audit.pictures[picture_key(row)][numbers]))
    return grid(lines, torch.arange(SHOWN)) if lines else None


def write_attack(
    found: dict[str, Any], truth: Tensor, labels: Tensor, pictures: dict[str, Tensor], folder: Path
) -> None:
    """What an attack on a recording found: attack.json, and the pictures where there are some."""
    marks = {row["attack"]: row["ssim"] for row in found["rows"]}
    files: dict[str, bytes] = {}
    if truth.dim() != 4:
        files |= _rows_drawn(found["rows"], truth, labels, pictures)
    elif pictures:
        lines = [("original", truth)]
        lines += [(f"{_wrapped(name)}\nSSIM {marks[name]:.2f}", guess) for name, guess in pictures.items()]
        files["reconstructions.png"] = grid(lines, labels)
    write_together(folder, {**files, "attack.json": json.dumps(found, indent=1).encode()})


def _rows_drawn(
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
    return curves(truth, told, named, _one_of_each(labels))


def grid(lines: list[tuple[str, Tensor]], labels: Tensor) -> bytes:
    """Rows of pictures with a label each; where attacks saw fewer images, only those that all saw."""
    plt = pyplot()
    shown = min(len(images) for _, images in lines)
    chosen = _one_of_each(labels[:shown])[:SHOWN]
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


def _one_of_each(labels: Tensor) -> list[int]:
    """Row numbers, ordered so that the first ones show every class once."""
    if labels.dim() > 1:  # of pixels
        return list(range(len(labels)))
    times: dict[int, int] = {}
    order = []
    for row, label in enumerate(labels.tolist()):
        times[label] = times.get(label, 0) + 1
        order.append((times[label], label, row))
    return [row for _, _, row in sorted(order)]


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, width: int = 28) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
