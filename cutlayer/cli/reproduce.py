"""`cutlayer reproduce`: a headline of a paper, measured with the commands that everybody has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..training.device import prepare
from .options import AsJson, DataDir, Threads
from .terminal import end_if_failed, say

Name = Annotated[str | None, typer.Argument(help="An experiment; see --list.")]
Listed = Annotated[bool, typer.Option("--list", help="Name all experiments, with what is known of each.")]
Size = Annotated[
    str,
    typer.Option(help="quick (two cores, minutes), medium (a GPU, minutes) or full (published sizes, for a GPU)."),
]
Only = Annotated[
    str | None,
    typer.Option(help="Make every Nth piece from the Ith on, e.g. 1/4: others beside it, in the same --out."),
]
Minutes = Annotated[float | None, typer.Option(help="Begin no piece after so long.")]
Fewer = Annotated[int | None, typer.Option(help="No more than so many seeds, the first ones. Default: all.")]
AtOnce = Annotated[int, typer.Option(help="Cells of an audit that are made at once, in processes.")]
DeviceOr = Annotated[str | None, typer.Option(help="cpu or cuda. Default: what the budget's commands say.")]

Kept = Annotated[
    Path | None,
    typer.Option("--out", help="A new folder, or the one to go on in. Default: runs/reproduce-<name>-<budget>."),
]


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


def reproduce(
    name: Name = None,
    list_: Listed = False,
    budget: Size = "quick",
    part: Only = None,
    minutes: Minutes = None,
    seeds: Fewer = None,
    jobs: AtOnce = 1,
    data_dir: DataDir = None,
    device: DeviceOr = None,
    threads: Threads = None,
    out: Kept = None,
    as_json: AsJson = False,
) -> None:
    """Measure a headline of one of the papers again, and say whether it holds.

    [bold]cutlayer reproduce --list[/bold] names them. Each is some commands (compare, audit) on recipes of a
    checkout, and a rule from their JSON to a verdict. Trainings and cells of audits are kept in --out one by one:
    the same command again goes on. Writes NAME.json with commands, seeds and commit; in docs/evidence/claims it
    becomes a line of EVIDENCE.md (make evidence).
    """
    from ..audit.claims import EXPERIMENTS, page

    if list_ or name is None:
        _list(EXPERIMENTS, as_json)
        return
    prepare(threads, device or "cpu")
    from ..audit.claims import run

    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there is {', '.join(EXPERIMENTS)}")
    one, share = EXPERIMENTS[name], run.Share.parse(part, minutes)
    means = run.Means(data_dir, device, jobs)
    one.commands(budget)  # refuses a budget that is none
    if not Path("recipes").is_dir():
        raise FileNotFoundError("experiments are made of recipes/: run it at the root of a checkout")
    folder = out or Path("runs") / f"reproduce-{name}-{budget}"
    found = run.reproduce(one, budget, folder, share, means, seeds, say)
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
    else:
        say(f"{one.claim}\nthe paper: {one.figure}")
        for line in run.shown(found, one.whose):
            say(line)
        say(f"written to {folder / f'{name}.json'}; in {page.CLAIMS} it is a line of {page.PAGE} (make evidence)")
    end_if_failed(found["failed"], "experiment", "the same command makes what is missing")


def _list(experiments: Mapping[str, Any], as_json: bool) -> None:
    from ..audit.claims import page

    found = page.every(Path()) if Path(page.EVIDENCE).is_dir() else []
    words = {one.experiment.name: one.finding.verdict for one in found}
    rows = [
        {"name": one.name, "paper": one.paper, "claim": one.claim, "verdict": words.get(one.name)}
        for one in experiments.values()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        known = f" [{row['verdict']}]" if row["verdict"] else ""
        print(f"{row['name']:{width}}  {row['paper']}: {row['claim']}{known}")
