"""What a client could do alone, beside kept audits that were made before anybody asked.

    client_alone.py train FILE.json ... --out LINES.jsonl [--data-folder FOLDER] [--device cuda] [--jobs 6]
    client_alone.py add FILE.json ... --lines LINES.jsonl

`train` reads the plans of the audits in the files and trains their clients alone, each such training once, however
many audits share it; a finished one is a line of LINES. `add` puts the rows where a report has them, with what the
split buys by them. The attacks are not run again: the rows of the audit stay as they are.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutlayer.audit.alone import Baseline
from cutlayer.audit.matrix import Matrix
from cutlayer.audit.rows import Verdict
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.split_buys import bought, in_words
from cutlayer.core.spec import spec
from cutlayer.training.facts.made import made

# What plans were written with before: the names of fields, and whose data it was where none is named.
RENAMED = {"aux": "aux_samples", "val": "val_share", "batch": "batch_size"}


@dataclass(frozen=True)
class Wanted:
    """The clients alone of one audit: its table as it would be made now, and the seeds of its rows."""

    matrix: Matrix
    seeds: tuple[int, ...]

    def trainings(self) -> list[tuple[str, int, Baseline]]:
        """Those that have to be trained; two audits with the same name of one want the same training."""
        return [
            (repr(replace(one.plan, seed=seed)), seed, one)
            for seed in self.seeds
            for one in self.matrix.alone
            if one.plan is not None
        ]


def plan_of(text: str) -> Any:
    """The plan that a kept audit names, in today's words."""
    for old, new in RENAMED.items():
        text = re.sub(rf"([(, ]){old}=", rf"\1{new}=", text)
    plan = spec(re.sub(r"protocol=(\w+)(?=[,)])", r"protocol=\1()", text))
    return plan if "data=" in text else replace(plan, data=spec("Digits()", "data"))


def audits(data: Any) -> list[dict[str, Any]]:
    """Every audit in a file, wherever it is."""
    if not isinstance(data, dict):
        return []
    if "rows" in data and "plan" in data:
        return [data]
    return [found for inner in data.values() for found in audits(inner)]


def wanted(audit: dict[str, Any], folder: Path | None, loaded: dict[str, Any], device: str = "cpu") -> Wanted:
    """`loaded` keeps data that several audits share."""
    plan = plan_of(audit["plan"])
    name = repr(plan.data)
    if name not in loaded:
        loaded[name] = plan.data.load(folder)
    guards = [spec(text, "guards") for text in dict.fromkeys(row["guard"] for row in audit["rows"]) if text != "none"]
    table = Matrix(AuditSpec(plan, guards), loaded[name], Resources(device=device))
    return Wanted(table, tuple(dict.fromkeys(row["seed"] for row in audit["rows"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    for command in ("train", "add"):
        one = commands.add_parser(command)
        one.add_argument("files", nargs="+", type=Path)
        one.add_argument("--data-folder", type=Path)
        one.add_argument("--lines" if command == "add" else "--out", dest="lines", required=True, type=Path)
        one.add_argument("--device", default="cpu")
        one.add_argument("--jobs", type=int, default=1)
        one.add_argument("--minutes", type=float, default=60.0)
        one.add_argument("--only", help="the one training of this name, here and now")
    args = parser.parse_args()
    told = [(file, json.loads(file.read_text())) for file in args.files]
    if args.command == "add":
        _add(told, args)
    elif args.only:
        _train(told, args)
    else:
        _train_all(told, args)


def _train_all(told: list[tuple[Path, Any]], args: argparse.Namespace) -> None:
    """A process a training, as many side by side as were asked for; nothing runs past the limit."""
    until, loaded = time.time() + 60 * args.minutes, {}
    there = _lines(args.lines)
    todo = {
        name: None
        for _, data in told
        for audit in audits(data)
        for name, _, _ in wanted(audit, args.data_folder, loaded).trainings()
        if name not in there
    }
    waiting, running = list(todo), {}
    print(f"{len(waiting)} trainings", flush=True)
    while waiting or running:
        while waiting and len(running) < args.jobs and time.time() < until:
            name = waiting.pop(0)
            command = [sys.executable, *sys.argv, "--only", name]
            running[name] = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if time.time() > until:
            for one in running.values():
                one.kill()
            print(f"cut off: {[*running, *waiting]}", flush=True)
            return
        time.sleep(0.5)
        running = {name: one for name, one in running.items() if one.poll() is None}


def _train(told: list[tuple[Path, Any]], args: argparse.Namespace) -> None:
    loaded: dict[str, Any] = {}
    for _, data in told:
        for audit in audits(data):
            own = wanted(audit, args.data_folder, loaded, args.device)
            for name, seed, one in own.trainings():
                if name == args.only:
                    row = own.matrix.trained_alone(one, seed)
                    line = {"training": name, "commit": _commit(), "machine": made()["machine"], "row": row}
                    with args.lines.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(f"{name}: {row['accuracy']}", flush=True)
                    return


def _add(told: list[tuple[Path, Any]], args: argparse.Namespace) -> None:
    loaded, lines = {}, _lines(args.lines)
    for file, data in told:
        for audit in audits(data):
            own = wanted(audit, args.data_folder, loaded)
            names = {(seed, one.name): name for name, seed, one in own.trainings()}
            if missing := [name for name in names.values() if name not in lines]:
                print(f"{file.name}: not yet trained: {missing}")
                continue
            fill(audit, own, {key: lines[name] for key, name in names.items()})
        file.write_text(json.dumps(data, indent=1) + "\n")


def fill(audit: dict[str, Any], own: Wanted, trained: dict[tuple[int, str], dict[str, Any]]) -> None:
    """The rows of clients alone, and what follows from them."""
    audit["alone"] = [
        {**line["row"], **{key: bare[key] for key in ("name", "budget", "costliest")}} if line else bare
        for seed in own.seeds
        for one in own.matrix.alone
        for bare, line in [(one.row(seed), trained.get((seed, one.name)))]
    ]
    audit["alone_made"] = {
        "commit": ", ".join(sorted({line["commit"] for line in trained.values()})),
        "machine": ", ".join(sorted({line["machine"] for line in trained.values()})),
        "command": "python tools/client_alone.py",
    }
    verdicts = [Verdict(**one) for one in audit.get("verdicts", ())]
    if verdicts:
        audit["split_buys"] = bought(audit["rows"], audit["alone"], verdicts)
        audit["split_buys_words"] = in_words(audit["split_buys"], audit["alone"])


def _lines(file: Path) -> dict[str, dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["training"]: line for line in map(json.loads, lines)}


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or os.environ.get("COMMIT", "unknown")


if __name__ == "__main__":
    main()
