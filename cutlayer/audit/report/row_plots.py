"""Records and series in a report: how well each column was read, and curves beside the true ones."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ...core.columns import Column
from ..floors import blind_guess
from ..row_scores import of_column
from ..rows import Floors, Row, picture_key
from .plots import INK, SOFT, heat, png, pyplot

SHOWN = 6  # curves in a line
MOST_COLUMNS = 40  # of a table that are shown: those read best on the open cut


class ColumnLine(NamedTuple):
    """One column: what a blind guess gives, and its skill behind each guard (None: it was not scored there)."""

    name: str
    floor: float
    skills: list[float | None]
    right: list[float | None]  # of a category: how often it was named right


class ColumnTable(NamedTuple):
    guards: list[str]
    best: list[str]  # the best-read column of each guard
    lines: list[ColumnLine]
    left: int  # columns that are not shown
    still: list[str]  # columns that never change among the scored records


def column_table(rows: Sequence[Row], best: Mapping[str, Row], floors: Floors) -> ColumnTable:
    """Each column behind each guard, as its strongest attacker reads it; the best-read first."""
    told = {guard: {one["name"]: one for one in row["columns"]} for guard, row in best.items()}
    first = next(iter(told.values()), {})
    names = list(dict.fromkeys([*first, *(name for columns in told.values() for name in columns)]))
    lines = [
        ColumnLine(
            name,
            blind_guess(floors, of_column(name)),
            [columns[name]["skill"] if name in columns else None for columns in told.values()],
            [columns[name]["accuracy"] if name in columns else None for columns in told.values()],
        )
        for name in names[:MOST_COLUMNS]
    ]
    still = sorted({name for row in best.values() for name in row["still"]})
    return ColumnTable(
        list(told), [row["columns"][0]["name"] for row in best.values()], lines, len(names) - len(lines), still
    )


class BestRecord(NamedTuple):
    """The record that was read best behind one guard: each column's value, and what the attacker says it is."""

    guard: str
    number: int
    skill: float
    cells: list[tuple[str, str]]


def best_records(
    truth: Tensor, rows: Sequence[Row], guesses: Mapping[str, Tensor], columns: Sequence[Column]
) -> list[BestRecord]:
    """In the table's own units; a mean hides the record that comes back whole."""
    found = []
    for row in rows:
        guess, worst = guesses.get(picture_key(row)), row.get("worst")
        if guess is not None and worst:
            number, score = worst[0]
            cells = [(column.shown(truth[number]), column.shown(guess[number])) for column in columns[:MOST_COLUMNS]]
            found.append(BestRecord(row["guard"], number, score, cells))
    return found


def column_chart(rows: Sequence[Row]) -> bytes:
    """The skill of each column as colour, a line a guard."""
    plt = pyplot()
    names = [one["name"] for one in rows[0]["columns"]][:MOST_COLUMNS]
    skills = [{one["name"]: one["skill"] for one in row["columns"]} for row in rows]
    wide, high = 3.4 + 0.42 * len(names), 1.6 + 0.36 * len(rows)
    figure, axes = plt.subplots(figsize=(max(6.0, wide), high))
    shown = [[max(0.0, own.get(name, 0.0)) for name in names] for own in skills]
    heat(axes, shown, "skill", "magma_r", high=1.0)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", size=8)
    axes.set_yticks(range(len(rows)), [_short(row["guard"]) for row in rows], size=8)
    return png(figure, plt)


def curves(
    truth: Tensor, rows: Sequence[Row], guesses: Mapping[str, Tensor], order: Sequence[int]
) -> dict[str, bytes]:
    """True series with what was made of them drawn over: some of every class, and those that were read best."""
    lines = [(row, guesses[picture_key(row)]) for row in rows if picture_key(row) in guesses]
    if not lines:
        return {}
    fewest = min(len(guess) for _, guess in lines)
    chosen = [number for number in order if number < fewest][:SHOWN]
    drawn = {"reconstructions.png": _drawn(truth, lines, [chosen] * len(lines))}
    best = [[number for number, _ in row.get("worst", [])][:SHOWN] for row, _ in lines]
    if all(best):
        drawn["read-best.png"] = _drawn(truth, lines, best)
    return drawn


def _drawn(truth: Tensor, lines: Sequence[tuple[Row, Tensor]], numbers: Sequence[Sequence[int]]) -> bytes:
    plt = pyplot()
    across = max(len(some) for some in numbers)
    figure, cells = plt.subplots(
        len(lines), across, figsize=(2.4 + 1.7 * across, 0.3 + 1.15 * len(lines)), squeeze=False
    )
    for (row, guess), some, line in zip(lines, numbers, cells, strict=True):
        for axes in line:
            axes.set_axis_off()
        for number, axes in zip(some, line, strict=False):
            # The first channel: several would lie over each other.
            axes.plot(truth[number, 0], color=SOFT, lw=2.2)
            axes.plot(_scaled(guess[number, 0], truth[number, 0]), color="#c2452d", lw=1.0)
        mark = f"correlation {row['value']:.2f}" if row.get("valid", True) else "attack failed"
        label = f"{_short(row['guard'])}\n{mark}"
        line[0].text(-0.12, 0.5, label, transform=line[0].transAxes, ha="right", va="center", size=8, color=INK)
    return png(figure, plt)


def _scaled(guess: Tensor, truth: Tensor) -> Tensor:
    """In the truth's level and size, mirrored where that is more like it: correlation asks for neither."""
    centred, wanted = guess - guess.mean(), truth - truth.mean()
    size = float((centred * wanted).sum() / centred.square().sum().clamp_min(1e-12))
    return centred * size + truth.mean()


def _short(text: str, width: int = 34) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
