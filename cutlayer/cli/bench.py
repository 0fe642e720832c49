"""`cutlayer bench`: speed as ratios, on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..training.device import prepare
from .options import AsJson
from .terminal import Bar, say

REACHED = {True: ": met", False: ": missed", None: ""}  # an entry's goal


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which entries; default: all. A prefix is enough: inproc")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where bench.json goes. Default: a new folder under runs/.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: a look, not a measurement.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda: the entries of a GPU, where none are named.")] = "cpu",
    against: Annotated[
        Path | None, typer.Option(help="An earlier bench.json: also say what became better or worse since.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed as ratios: what we do against the plain way, interleaved in one run, on this machine."""
    prepare(1, device)
    from ..bench import history
    from ..bench import run as room
    from ..core.files import write_text
    from ..engines.taken import taken

    names = names or (list(room.ON_A_GPU) if device == "cuda" else [])
    chosen = room.chosen(names)
    earlier = history.read(against) if against is not None else {}
    with taken(out, "bench") as folder, Bar() as bar:
        rows = room.run(names, quick=quick, on_entry=lambda name, done: bar.show(name, done))
        write_text(folder / "bench.json", json.dumps(rows, indent=1))
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        say(
            f"{row['name']:18} {row['ratio']:6.2f} x {row['baseline']}   "
            f"({row['value']:.4g} {row['unit']}; goal {row['goal']}{REACHED[row['met']]})"
        )
    if against is not None:
        say(f"against {against}" + (f" ({other})" if (other := history.other_machine(rows, earlier)) else ""))
        for change in history.against(rows, earlier):
            say(str(change))
    if lacking := sorted(set(chosen) - {row["name"] for row in rows}):
        say(f"left out, since this machine lacks what they need (a GPU, data, grpc): {', '.join(lacking)}")
    say(f"written to {folder / 'bench.json'}")
