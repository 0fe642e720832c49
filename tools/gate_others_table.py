"""The page on Gate on other data from its figures: tables, plot and pictures of docs/evidence/gate-others.md.

    gate_others_table.py [--from OTHERS.jsonl PARTS.jsonl TURNS.jsonl] [--plot]

`--from` collects what gate_frontier.py and gate_turns.py have written into gate-others.json. Prints the tables;
`--plot` draws gate-parts.png.
"""

import argparse
import base64
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from gate_table import ALL, FOLDER, WEIGHTS, Z, bytes_a_sample, each

FIGURES = FOLDER / "gate-others.json"
WORDS = {
    "open": "open cut",
    "alone": "a client alone, a fifth of the data, best of 20, 40 and 80 epochs by validation",
    "32x2 home WCC": "64 bits in every epoch, `WCC(0.001)`",
    "32x2 once compressed": "**64 bits, learnt at home, sent once, answers and gradients in 4 bits**",
}
SETS = {
    "fashion_small": "Clothing (Fashion-MNIST)",
    "series_small": "A series (MNIST, row by row)",
    "faces_small": "Faces (UTKFace, 32x32, gender)",
}
# Of the plot: what is varied, and its settings in order.
VARIED = {
    "numbers 8, 32, 128": ("8x2 home", "32x2 home", "128x2 home"),
    "bits 1, 2, 4": ("32x1 home", "32x2 home", "32x4 home"),
    "encoder linear, as the head, 4 heads": ("32x2 home linear", "32x2 home", "32x2 home wide"),
    "WCC 0, 0.001, 0.01": ("32x2 home", "32x2 home WCC", "32x2 home WCC .01"),
    "epochs 3, 6, 12": ("32x2 home, half the epochs", "32x2 home", "32x2 home, twice the epochs"),
    "rounding nearest, stochastic": ("32x2 home", "32x2 home stochastic"),
    "home 1, 0": ("32x2 home", "32x2"),
    "sent every epoch, once": ("32x2 home", "32x2 once"),
}
BASE = "32x2 home"
SHORT = {
    "open, Decoder": "open cut",
    "32x2 home WCC, Decoder": "every epoch: one message",
    "32x2 home WCC, Linked": "all 11 linked",
    "32x2 once compressed, Decoder": "sent once",
}
Row = dict[str, Any]


def collected(files: list[Path]) -> dict[str, list[Row]]:
    """What was measured, without the pictures."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    whole = [row for row in rows if "error" not in row]
    slim = [{name: value for name, value in row.items() if name not in ("pictures", "val")} for row in whole]
    return {
        "rows": [row for row in slim if "local_steps" not in row],
        "turns": [row for row in slim if "local_steps" in row],
    }


def by_name(rows: list[Row], data: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["data"] == data:
            found[row["name"]].append(row)
    return {name: sorted(found[name], key=lambda row: row["seed"]) for name in (*WORDS, *found) if name in found}


def read(rows: list[Row], attack: str) -> str:
    """Mean over seeds, every seed, and the widest of their intervals over samples."""
    if not all(attack in row for row in rows):
        return ""
    ends = [row[attack]["interval"]["value"] for row in rows]
    within = f"{min(low for low, _ in ends):.2f} to {max(high for _, high in ends):.2f}"
    return each(rows, lambda row: row[attack]["value"], "{:.3f}") + f"; {within}"


def floor(rows: list[Row]) -> str:
    if "floors" not in rows[0]:
        return ""
    found = [row["floors"]["class_mean"] for row in rows]
    return f"{mean(one.get('ssim', one.get('correlation_either', 0.0)) for one in found):.3f}"


def table(named: dict[str, list[Row]]) -> str:
    lines = [
        "| what leaves | accuracy | at home | bits in all | one message | all linked | class mean "
        "| z and dz, all four, weights (bytes a sample and pass) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in named.items():
        percent = each(rows, lambda row: 100 * row["accuracy"], "{:.1f}")
        home = each(rows, lambda row: row.get("accuracy_at_home") and 100 * row["accuracy_at_home"], "{:.1f}")
        bits = f"{rows[0]['told_bits']:,}" if "told_bits" in rows[0] else "nothing leaves"
        sizes = ""
        if "ledger" in rows[0]:
            counted = (mean(bytes_a_sample(row, *kinds) for row in rows) for kinds in (Z, ALL, WEIGHTS))
            sizes = ", ".join(f"{one:,.1f}" for one in counted)
        linked = read(rows, "Linked")
        cells = (WORDS.get(name, name), percent, home, bits, read(rows, "Decoder"), linked, floor(rows), sizes)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tells(named: dict[str, list[Row]]) -> str:
    """What one message tells of the label and of attributes, beside what the commonest value and the label would."""
    lines = [
        "| of | "
        + " | ".join(WORDS[name] for name in named if "tells" in named[name][0])
        + " | chance | by the label |"
    ]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    first = next(iter(named.values()))
    for secret in first[0]["tells"]:
        cells = []
        for rows in named.values():
            if "tells" in rows[0]:
                cells.append(each(rows, lambda row, secret=secret: 100 * row["tells"][secret]["value"], "{:.0f}"))
        chance = mean(100 * row["tells"][secret]["chance"] for row in first)
        label = [row["told_by_class"].get(secret) for row in first]
        by_label = "" if label[0] is None else f"{100 * mean(label):.0f}"
        lines.append("| " + " | ".join((secret, *cells, f"{chance:.0f}", by_label)) + " |")
    return "\n".join(lines)


def readers(named: dict[str, list[Row]]) -> str:
    """How each reader did on held-out auxiliary samples: the best is chosen by that."""
    lines = []
    for name, rows in named.items():
        for attack in ("Decoder", "Linked"):
            if all(attack in row for row in rows):
                scores = {
                    one: mean(row[attack]["readers"][one] for row in rows) for one in rows[0][attack]["readers"]
                }
                lines.append(
                    f"- {name}, {attack}: " + ", ".join(f"{one} {score:.3f}" for one, score in scores.items())
                )
    return "\n".join(lines)


def turns(rows: list[Row]) -> str:
    lines = [
        "| what leaves | batches a turn | accuracy | weights (bytes a sample and pass) "
        "| classes told by a turn's weights | the same by their shares |",
        "|---|---|---|---|---|---|",
    ]
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["name"], row["local_steps"]].append(row)
    for (name, steps), some in found.items():
        sent = mean(bytes_a_sample(row, *WEIGHTS) for row in some)
        labels = ["", ""]
        if all("labels" in row for row in some):
            labels = [each(some, lambda row, k=k: 100 * row["labels"][k], "{:.0f}") for k in ("told", "common")]
        cells = (
            name, str(steps or f"all {some[0]['batches']}"), each(some, lambda row: 100 * row["accuracy"], "{:.1f}"),
            f"{sent:,.0f}", *labels,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[Row]) -> None:
    from cutlayer.audit.report.plots import pyplot

    named = by_name(rows, "fashion_tiny")
    figure, axes = pyplot().subplots(1, 2, figsize=(11.5, 5), sharey=True, constrained_layout=True)
    titles = {"Decoder": "one message", "Linked": "all messages of the training, linked"}
    for axis, (attack, title) in zip(axes, titles.items(), strict=True):
        for number, (words, names) in enumerate(VARIED.items()):
            _line(axis, named, attack, words, names, f"C{number}")
        base = _place(named[BASE], attack)
        axis.plot(*base, "o", color="black", ms=9, label="32 numbers, 2 bits, every epoch", zorder=5)
        marks = mean(row["floors"]["class_mean"]["ssim"] for row in named[BASE])
        axis.axvline(marks, color="grey", ls=":", lw=1, label=f"class mean ({marks:.2f})")
        if "open" in named:
            level, told = 100 * mean(row["accuracy"] for row in named["open"]), _place(named["open"], "Decoder")[0]
            axis.axhline(level, color="grey", ls="--", lw=1, label=f"open cut (SSIM {told:.2f})")
        axis.set(xlabel="SSIM of the best reader", title=title)
    axes[0].set(ylabel="test accuracy (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.suptitle("What each part of a gate is worth: clothing, five clients, one thing changed at a time")
    figure.savefig(FOLDER / "gate-parts.png", dpi=110)


def _line(
    axis: Any, named: dict[str, list[Row]], attack: str, words: str, names: tuple[str, ...], colour: str
) -> None:
    """The settings of one part, in order, from point to point."""
    values = words.split(" ", 1)[1].split(", ")
    there = {name: value for name, value in zip(names, values, strict=True) if name in named}
    if len(there) < 2:
        return
    points = [_place(named[name], attack) for name in there]
    axis.plot(*zip(*points, strict=True), "o-", color=colour, label=words, lw=1.2, ms=5)
    for (name, value), point in zip(there.items(), points, strict=True):
        if name != BASE:
            axis.annotate(value, point, textcoords="offset points", xytext=(5, 4), fontsize=8, color=colour)


def _place(rows: list[Row], attack: str) -> tuple[float, float]:
    """(SSIM, accuracy). Of what was sent once, linking adds nothing."""
    told = [row.get(attack, row["Decoder"])["ssim"] for row in rows]
    return mean(told), 100 * mean(row["accuracy"] for row in rows)


def pictures(files: list[Path]) -> None:
    """Of the first seed: originals, and what is read of them."""
    import torch

    from cutlayer.audit.report.plots import pyplot

    shown: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        for attack, one in row.get("pictures", {}).items():
            if row["data"] in SETS:
                made = torch.frombuffer(bytearray(base64.b64decode(one["bytes"])), dtype=torch.uint8)
                made = made.reshape(one["shape"])
                made = made[:, 0] if made.dim() == 4 else made.transpose(1, 2)
                name = "originals" if attack == "truth" else f"{row['name']}, {attack}"
                shown[row["data"]].setdefault(name, made)
    figure, all_axes = pyplot().subplots(1, len(shown), figsize=(6.5 * len(shown), 2.9), constrained_layout=True)
    for axis, (data, lines) in zip(all_axes if len(shown) > 1 else [all_axes], shown.items(), strict=True):
        axis.imshow(torch.cat([torch.cat(list(one), 1) for one in lines.values()]), cmap="gray", vmin=0, vmax=255)
        words = [SHORT.get(name, name) for name in lines]
        axis.set_yticks([28 * place + 14 for place in range(len(lines))], words)
        axis.set(xticks=[], title=SETS[data])
    figure.savefig(FOLDER / "gate-others-pictures.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="files", type=Path, nargs="+", default=[])
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if args.files:
        FIGURES.write_text(json.dumps(collected(args.files), separators=(",", ":")) + "\n")
        pictures(args.files)
    data = json.loads(FIGURES.read_text())
    for name, title in SETS.items():
        if named := by_name(data["rows"], name):
            print(f"\n## {title}\n\n{table(named)}\n\n{tells(named)}\n\n{readers(named)}")
    if parts := by_name(data["rows"], "fashion_tiny"):
        print(f"\n## Parts\n\n{table(parts)}\n\n{readers(parts)}")
    print(f"\n## Turns\n\n{turns(data['turns'])}")
    if args.plot:
        plot(data["rows"])


if __name__ == "__main__":
    main()
