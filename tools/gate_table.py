"""The page on Gate from its figures: the tables of docs/evidence/gate.md and its plot, from gate.json beside it.

    gate_table.py [--plot]

Prints the tables; `--plot` draws gate.png. gate_frontier.py measures.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs/evidence"
WORDS = {
    "open": "open cut",
    "alone": "a client alone, a tenth of the data, best of 40, 100 and 200 epochs by validation",
    "32x2": "`Gate(numbers=32, bits=2)`",
    "32x2 home .3": "the same, `home=0.3`",
    "32x2 home WCC": "32 x 2, `home=1`, `WCC(0.001)`",
    "32x2 home WCC compressed": "the same, answers and gradients in 4 bits",
    "16x1 home WCC": "16 x 1, `home=1`, `WCC(0.001)`",
    "32x2 once, split 4": "32 x 2, ten epochs at home, four split, sent once",
    "32x2 once": "32 x 2 learnt at home, sent once",
    "32x2 once compressed": "**the same, answers and gradients in 4 bits**",
    "32x2 once, four views": "32 x 2 learnt at home, four views",
    "16x1 once": "16 x 1 learnt at home, sent once",
    "32x1 once": "32 x 1 learnt at home, sent once",
    "64x2 once": "64 x 2 learnt at home, sent once",
    "32x4 once": "32 x 4 learnt at home, sent once",
    "open, uneven": "open cut",
    "32x2 home WCC, uneven": "32 x 2, `home=1`, `WCC(0.001)`, every epoch",
    "32x2 once, uneven": "32 x 2 learnt at home, sent once",
    "32x2 once compressed, uneven": "the same, answers and gradients in 4 bits",
}
SHOWN = {  # in the plot; the rows sent once lie side by side
    "32x2": "32 x 2, every epoch",
    "32x2 home WCC": "with WCC and a loss at home",
    "16x1 home WCC": "16 x 1, every epoch",
    "32x4 once": "learnt at home, sent once (16 to 128 bits)",
    "32x2 once, split 4": "four epochs split, then once",
}
Rows = dict[str, list[dict[str, Any]]]


def bytes_a_sample(row: dict[str, Any], *kinds: tuple[str, str]) -> float:
    found = {(one["kind"], one["direction"]): one["bytes"] for one in row["ledger"]["rows"]}
    return sum(found.get(kind, 0) for kind in kinds) / row["ledger"]["samples"]["training"]


Z = ("FORWARD", "up"), ("BACKWARD", "down")
ALL = (*Z, ("FORWARD", "down"), ("BACKWARD", "up"))
WEIGHTS = ("WEIGHTS", "up"), ("WEIGHTS", "down")


def by_name() -> Rows:
    rows: Rows = defaultdict(list)
    for row in json.loads((FOLDER / "gate.json").read_text())["rows"]:
        rows[row["name"]].append(row)
    return {name: sorted(rows[name], key=lambda row: row["seed"]) for name in WORDS if name in rows}


def each(rows: list[dict[str, Any]], of: Any, form: str) -> str:
    """The mean, and every seed where there are several."""
    found = [of(row) for row in rows]
    if any(one is None for one in found):
        return ""
    shown = form.format(mean(found))
    return shown if len(found) == 1 else f"{shown} ({', '.join(form.format(one) for one in found)})"


def read(rows: list[dict[str, Any]], attack: str) -> str:
    if not all(attack in row for row in rows):
        return ""
    both = [each(rows, lambda row, key=key: row[attack][key], "{:.3f}") for key in ("ssim", "ssim_p90")]
    return " / ".join(one.split(" (")[0] for one in both)


def floor(rows: list[dict[str, Any]]) -> str:
    if "floors" not in rows[0]:
        return ""
    return " / ".join(f"{mean(row['floors']['class_mean'][key] for row in rows):.3f}" for key in ("ssim", "ssim_p90"))


def table(rows: Rows) -> str:
    lines = [
        "| what leaves | accuracy | at home | bits in all | one message | all linked | class mean "
        "| z and dz, all four, weights (bytes a sample and pass) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        percent = each(found, lambda row: 100 * row["accuracy"], "{:.1f}")
        home = each(found, lambda row: row.get("accuracy_at_home") and 100 * row["accuracy_at_home"], "{:.1f}")
        bits = f"{found[0]['told_bits']:,}" if "told_bits" in found[0] else "nothing leaves"
        sizes = ""
        if "ledger" in found[0]:
            counted = (mean(bytes_a_sample(row, *kinds) for row in found) for kinds in (Z, ALL, WEIGHTS))
            sizes = ", ".join(f"{one:,.1f}" for one in counted)
        cells = (WORDS[name], percent, home, bits, read(found, "Decoder"), read(found, "Linked"), floor(found), sizes)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: Rows) -> None:
    from cutlayer.audit.report.plots import pyplot

    figure, axes = pyplot().subplots(figsize=(8.5, 4.6), constrained_layout=True)
    even = {name: found for name, found in rows.items() if "uneven" not in name and "Linked" in found[0]}
    for attack, marker, words in (
        ("Decoder", "o", "one message"),
        ("Linked", "D", "all messages linked, order known"),
    ):
        points = [(mean(r[attack]["ssim"] for r in f), 100 * mean(r["accuracy"] for r in f)) for f in even.values()]
        axes.scatter(*zip(*points, strict=True), marker=marker, s=44, label=words, alpha=0.85)
        if attack == "Linked":
            for name, point in zip(even, points, strict=True):
                if name in SHOWN:
                    axes.annotate(SHOWN[name], point, textcoords="offset points", xytext=(8, -3), fontsize=8)
    for name, colour in (("open", "black"), ("alone", "grey")):
        level = 100 * mean(row["accuracy"] for row in rows[name])
        axes.axhline(level, color=colour, lw=1, ls="--")
        axes.text(0.32, level + 0.25, f"{WORDS[name].split(',')[0]}: {level:.1f} %", fontsize=8, color=colour)
    class_mean = mean(row["floors"]["class_mean"]["ssim"] for row in rows["open"])
    axes.axvline(class_mean, color="tab:green", lw=1, ls=":")
    axes.text(class_mean + 0.001, 73, "class mean", rotation=90, fontsize=8, color="tab:green")
    axes.set(xlabel="SSIM of the best reader", ylabel="test accuracy (%)", xlim=(0.135, 0.4))
    axes.set_title("Ten clients, CIFAR-10: what is read against what is learnt")
    axes.legend(loc="center right", fontsize=8)
    figure.savefig(FOLDER / "gate.png", dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true")
    everything = by_name()
    for title, wanted in (("even", False), ("uneven", True)):
        print(f"\n{title}\n\n" + table({n: f for n, f in everything.items() if ("uneven" in n) == wanted}))
    if parser.parse_args().plot:
        plot(everything)
