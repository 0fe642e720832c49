"""An audit as files: audit.json, one self-contained report.html, and its plots as PNG."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ... import __version__
from ...core.files import write_together
from ...engines.tracking import Tracking
from ...training.facts.compression import RATES, compared, crossing, in_units
from ...training.facts.made import made
from ...training.facts.privacy import lines
from ..grades import GRADES, UNSURE, WIDE_GAP
from ..kinds import IMAGES, RECORDS, TEXTS, of_floors, rebuilt
from ..result import Audit
from ..rows import AuditFile, Bought, Verdict, picture_key
from ..split_buys import bought
from ..split_buys import in_words as buys_in_words
from ..split_buys import over_seeds as alone_over_seeds
from ..verdicts import by_form, flags, guards_of, strongest, total_bytes
from ..words import bytes_fewer, floor_name, percents, signed
from ..words_told import in_words as words_told
from .detectors import in_words, leak_plot, metered, meters, missed, noticed_poison, picture_floor, servers, watchdogs
from .lead import lead
from .page import page
from .pictures import grid, rebuilt_pictures, rows_drawn, tradeoff, wrapped
from .row_plots import best_records, column_table
from .seen import Strip, alt_texts, strips
from .sentences import sentences
from .shown import SHOWN, cost, counted, one_of_each, several_seeds, shown_rows
from .sweep import figure, points, table

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


def write_attack(
    found: dict[str, Any], truth: Tensor, labels: Tensor, pictures: dict[str, Tensor], folder: Path
) -> None:
    """What an attack on a recording found: attack.json, and the pictures where there are some."""
    marks = {row["attack"]: row["ssim"] for row in found["rows"]}
    files: dict[str, bytes] = {}
    if truth.dim() != 4:
        files |= rows_drawn(found["rows"], truth, labels, pictures)
    elif pictures:
        lines = [("original", truth)]
        lines += [(f"{wrapped(name)}\nSSIM {marks[name]:.2f}", guess) for name, guess in pictures.items()]
        files["reconstructions.png"] = grid(lines, labels)
    write_together(folder, {**files, "attack.json": json.dumps(found, indent=1).encode()})


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
    names = guards_of(audit.rows)
    best_rows = {name: row for name in names if (row := strongest(audit.rows, name)) is not None}
    verdicts = audit.verdicts()
    guards = [{"number": number, "guard": one.guard, "verdict": one} for number, one in enumerate(verdicts)]
    those = [row for name in names if (row := counted(audit.rows, name)) is not None]
    costs = {name: cost(audit.rows, name) for name in names}
    sliding = _strips(audit) if of_floors(audit.floors) is IMAGES else []
    return page(
        "report.html.j2",
        pictures,
        audit=audit,
        kind=(kind := of_floors(audit.floors)),
        columns=column_table(audit.rows, best_rows, audit.floors) if kind is RECORDS else None,
        named=audit.columns,
        floor_name=floor_name,
        read=sentences(audit.truth, shown_rows(audit), audit.pictures, audit.words, one_of_each(audit.labels))
        if kind is TEXTS
        else None,
        records=best_records(audit.truth, shown_rows(audit), audit.pictures, audit.columns),
        guards=guards,
        ranked=sorted(guards, key=lambda item: _rank(item["verdict"])) if len(guards) > FEW else guards,
        few=len(guards) <= FEW,
        secrets=list(dict.fromkeys((one.secret, one.target) for judged in verdicts for one in judged.secrets)),
        best=best_rows,
        flags=flags(audit.rows, verdicts),
        costs=costs,
        leads=lead(verdicts, {name: one["accuracy"] for name, one in costs.items()}, audit.secrets),
        grades=GRADES,
        unsure=UNSURE,
        percents=percents,
        signed=signed,
        times=bytes_fewer,
        command=command,
        total_bytes=total_bytes,
        claims={row["guard"]: lines(row["privacy"]) for row in audit.rows if row["guard"] != "none"},
        counted=those,
        alt=alt_texts(those, kind),
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
        several_seeds=several_seeds(audit),
        by_form=[forms for name in names for forms in by_form(audit.rows, name)],
        wide_gap=WIDE_GAP,
        rate_names=RATES,
        crossing=crossing,
        compared=compared,
        in_units=in_units,
        words_told=words_told,
        measured=audit.rows[0]["rates"]["total ratio"] is not None,
    )


def computing_seconds(audit: Audit) -> float:
    """What its trainings and attacks took together, wherever and however many at once."""
    trainings = {(row["guard"], row["seed"]): row["train_seconds"] for row in audit.rows}
    alone = sum(one["train_seconds"] or 0.0 for one in audit.alone)
    return sum(trainings.values()) + sum(row["seconds"] for row in audit.rows) + alone


def _strips(audit: Audit) -> list[Strip]:
    """The pictures of the grid once more, to slide between original and reconstruction."""
    rows = shown_rows(audit)
    if not rows:  # attacks on labels and attributes draw nothing
        return []
    rebuilt_of = {row["guard"]: audit.pictures[picture_key(row)] for row in rows}
    fewest = min((len(pictures) for pictures in rebuilt_of.values()), default=0)
    return strips(rows, audit.truth, rebuilt_of, one_of_each(audit.labels[:fewest])[:SHOWN])


def _rank(judged: Verdict) -> tuple[bool, float]:
    """For ranking: the least leakage first, and last of what nothing, or nothing good, can be said."""
    return judged.grade in UNSURE, judged.leak if judged.leak is not None else float("inf")
