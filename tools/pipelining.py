"""What gradients one step old cost in accuracy: trains both relays side by side and writes docs/evidence/pipelining.*

    python tools/pipelining.py FOLDER

FOLDER keeps the comparisons; those that are there already are not trained again.
"""

import json
import shlex
import subprocess
import sys
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
DATA, NETS = ("Digits", "Fashion"), ("MnistNet(cut=4)", "SimpleCNN(depth=2)")
OPTIMIZERS = ("SGD(lr=0.05, momentum=0.9)", "Adam(lr=0.001)")
USUAL, AHEAD = "rounds=Relay", "rounds=Relay(ahead=1)"
SEEDS = 5
T95 = 2.776  # Student's t at 97.5 %, SEEDS - 1 degrees of freedom

Row = dict[str, Any]


def command(data: str, net: str, optimizer: str) -> list[str]:
    variants = ["--with", USUAL, "--with", AHEAD, "--seeds", str(SEEDS), "--no-alone", "--threads", "1"]
    optimizers = ["--client-optimizer", optimizer, "--server-optimizer", optimizer]
    plan = ["--data", data, "--net", net, "--local-steps", "0", "--epochs", "8", *optimizers]
    return ["cutlayer", "compare", *plan, *variants]


def compared(folder: Path, setting: tuple[str, str, str]) -> Row:
    """Both relays of one setting, seed by seed."""
    out, words = folder / "-".join("".join(filter(str.isalnum, one)) for one in setting), command(*setting)
    if not (out / "compare.json").exists():
        subprocess.run([*words, "--out", str(out)], check=True)
    rows = json.loads((out / "compare.json").read_text())["rows"]
    found = {name: [row["accuracy"] for row in rows if row["variant"] == name] for name in (USUAL, AHEAD)}
    apart = [late - usual for usual, late in zip(found[USUAL], found[AHEAD], strict=True)]
    within = T95 * stdev(apart) / sqrt(SEEDS)
    return {
        "data": setting[0],
        "net": setting[1],
        "optimizers": setting[2],
        "command": shlex.join(words),
        "steps": rows[0]["steps"],
        "accuracy": {"ahead=0": found[USUAL], "ahead=1": found[AHEAD]},
        "difference": mean(apart),
        "interval of 95 %": [mean(apart) - within, mean(apart) + within],
    }


def line(row: Row) -> str:
    usual, late = (f"{mean(each):.3f} ± {stdev(each):.3f}" for each in row["accuracy"].values())
    low, high = (100 * end for end in row["interval of 95 %"])
    apart = f"{100 * row['difference']:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"| {row['data']} | `{row['net']}` | `{row['optimizers']}` | {usual} | {late} | {apart} |"


PAGE = """# Gradients one step old

What `Relay(ahead=1)` costs in accuracy: the same plans, seeds and numbers of steps with and without it, by
`python tools/pipelining.py FOLDER`. For every line it types one of these ([pipelining.json](pipelining.json)
has them all):

```console
$ {command}
```

One client, U-shaped, eight epochs ({steps} steps of 64 samples), 500 test images, {seeds} seeds. Mean ± standard
deviation of the test accuracy after the last epoch; the difference in points, within pairs of one seed, with
its 95 % interval (Student's t). Settings were fixed before a score was seen, and none was tuned for either way.

| data | network | both optimizers | `Relay()` | `Relay(ahead=1)` | difference |
|---|---|---|---|---|---|
{lines}
"""


def page(rows: list[Row]) -> str:
    facts = {"command": rows[0]["command"], "steps": rows[0]["steps"], "seeds": SEEDS}
    return PAGE.format(**facts, lines="\n".join(map(line, rows)))


if __name__ == "__main__":
    found = [compared(Path(sys.argv[1]), one) for one in product(DATA, NETS, OPTIMIZERS)]
    (EVIDENCE / "pipelining.json").write_text(json.dumps(found, indent=1) + "\n")
    path = EVIDENCE / "pipelining.md"
    said = path.read_text().partition("\n## ") if path.exists() else ("", "", "")
    path.write_text(page(found) + said[1] + said[2])
