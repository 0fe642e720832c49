"""Records what `cutlayer bench` measured: docs/evidence/bench.json, its tables on the pages, and its history.

    cutlayer bench --out runs/now && python tools/bench_history.py runs/now/bench.json [more of them]

Each entry of the given files takes the place of the one recorded before; the others stay, so that a benchmark may be
measured in several runs. Tables are written by tools/tables.py. docs/evidence/bench-history.png is drawn from every
committed version of the record: one line an entry (--entries); its ratio is that to the plain way of the same run, so
machines may differ, but not much.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import tables

from cutlayer.audit.report.plots import INK, SOFT, png, pyplot
from cutlayer.bench import history

RECORDED = "docs/evidence/bench.json"
PICTURE = Path("docs/evidence/bench-history.png")
SHOWN = ("inproc", "grpc.train", "clients.1000", "pipeline")


def recorded(before: list[dict[str, Any]], files: list[Path]) -> list[dict[str, Any]]:
    """The record with what these files measured anew."""
    found = {row["name"]: row for row in before}
    for file in files:
        found |= {name: dict(row) for name, row in history.read(file).items()}
    return list(found.values())


def versions() -> list[tuple[str, list[dict[str, Any]]]]:
    """(date and commit, rows) of every version, the oldest first; what lies here uncommitted comes last."""
    listed = _git("log", "--reverse", "--format=%h %ad", "--date=format:%m-%d %H:%M", "--", RECORDED).splitlines()
    found = [(line, json.loads(_git("show", f"{line.split()[0]}:{RECORDED}"))) for line in listed]
    here = json.loads(Path(RECORDED).read_text())
    return found if found and found[-1][1] == here else [*found, ("now", here)]


def draw(found: list[tuple[str, list[dict[str, Any]]]], entries: tuple[str, ...]) -> bytes:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5))
    names = [row["name"] for row in found[-1][1] if row["name"].startswith(entries)]
    for name in names:
        lines = [(at, row["ratio"]) for at, (_, rows) in enumerate(found) for row in rows if row["name"] == name]
        axes.plot(*zip(*lines, strict=True), marker="o", markersize=3, linewidth=1, label=name)
    axes.axhline(1, color=SOFT, linewidth=0.8)
    axes.set_xticks(range(len(found)), [when.split(" ", 1)[-1] for when, _ in found], rotation=30, ha="right")
    axes.set_ylabel("times the plain way", color=INK)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return png(figure, plt)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="what `cutlayer bench` wrote, to be recorded")
    parser.add_argument("--entries", nargs="+", default=list(SHOWN), help="that are drawn, by how they begin")
    given = parser.parse_args()
    if given.files:
        rows = recorded(json.loads(Path(RECORDED).read_text()), given.files)
        Path(RECORDED).write_text(json.dumps(rows, indent=1) + "\n")
    tables.write()
    PICTURE.write_bytes(draw(versions(), tuple(given.entries)))
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
