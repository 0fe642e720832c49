"""An audit as a table for a terminal."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from ..grades import OPEN
from ..kinds import IMAGES, of_floors, rebuilt
from ..result import Audit
from ..rows import Row, Verdict
from ..split_buys import bought
from ..split_buys import in_words as buys_in_words
from ..split_buys import over_seeds as alone_over_seeds
from ..verdicts import flags
from ..words import floor_name, secret_name, signed
from .shown import cost, counted


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
    buys = bought(audit.rows, audit.alone, verdicts)
    points, blank = {one["guard"]: signed(one["points"]) for one in buys}, [""] * len(several)
    for judged in verdicts:
        row = counted(audit.rows, judged.guard)
        if row is None:
            continue
        ends = row.get("interval", {}).get("value")
        costs = cost(audit.rows, judged.guard)
        sure = "-" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
        table.add_row(
            judged.guard, f"{costs['accuracy']:.3f}", points.get(judged.guard, "-"), f"{row['value']:.3f}", sure,
            _figure(cast(Mapping[str, Any], row).get(kind.statistics["p90"])),
            *(tell({**row, "identified": _identified(judged)}) for tell in own.values()),
            f"{costs['up']:,.0f}", f"{costs['down']:,.0f}",
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
    for sentence in buys_in_words(buys, audit.alone):
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
