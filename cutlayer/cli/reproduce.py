"""`cutlayer reproduce`: a headline of a paper, measured with the commands that everybody has."""

import json
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, DataDir, Jobs, Out, Threads
from .terminal import say

Name = Annotated[str | None, typer.Argument(help="An experiment; see --list.")]
Listed = Annotated[bool, typer.Option("--list", help="Name all experiments, with what is known of each.")]
Size = Annotated[str, typer.Option(help="quick (two cores, minutes) or full (published sizes, for a GPU).")]
Only = Annotated[
    str | None, typer.Option(help="Of several runs make part I of N, e.g. 1/4: the others elsewhere, side by side.")
]
DeviceOr = Annotated[str | None, typer.Option(help="cpu or cuda. Default: what the budget's commands say.")]


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


def reproduce(
    name: Name = None,
    list_: Listed = False,
    budget: Size = "quick",
    part: Only = None,
    data_dir: DataDir = None,
    device: DeviceOr = None,
    threads: Threads = None,
    jobs: Jobs = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure a headline of one of the papers again, and say whether it holds.

    [bold]cutlayer reproduce --list[/bold] names them. Each is some commands (compare, audit) on recipes of a
    checkout, and a rule from their JSON to a verdict. Finished runs are kept in --out: the same command again goes
    on. Writes NAME.json with commands, seeds and commit; in docs/evidence/claims it becomes a line of EVIDENCE.md
    (make evidence).
    """
    from ..audit.claims import EXPERIMENTS, page
    from ..audit.claims.base import BUDGETS, NOT_MEASURED

    if list_ or name is None:
        _list(EXPERIMENTS, as_json)
        return
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there is {', '.join(EXPERIMENTS)}")
    if budget not in BUDGETS:
        raise ValueError(f"--budget is one of {', '.join(BUDGETS)}; got {budget!r}")
    one = EXPERIMENTS[name]
    if not Path("recipes").is_dir():
        raise FileNotFoundError("experiments are made of recipes/: run it at the root of a checkout")
    folder = out or Path("runs") / f"reproduce-{name}-{budget}"
    folder.mkdir(parents=True, exist_ok=True)
    more = _options(data_dir, threads, jobs)
    whole = dict(one.commands(budget))
    mine = _part(whole, part)
    began = time.monotonic()
    found: dict[str, Any] = {"name": name, "budget": budget, "commit": _commit(), "commands": {}, "results": {}}
    missing = _run_all(mine, more, device, folder, found)
    if missing is None and one.after is not None and len(found["results"]) == len(whole):
        later = one.after(found["results"], budget)
        missing = _run_all(later, more, device, folder, found)
    found["seconds"] = round(time.monotonic() - began, 1)
    found["seeds"] = sorted({row["seed"] for data in found["results"].values() for row in data["rows"]})
    if missing is not None:
        found["not_measured"] = missing
    elif part is None:
        finding = one.judge(found["results"])
        found["verdict"], found["why"] = finding.verdict, finding.why
    file = folder / (f"{name}.json" if part is None else f"{name}-part.json")
    file.write_text(json.dumps(found, indent=1))
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
        return
    if missing is not None:
        say(f"{NOT_MEASURED}: {missing}")
    elif part is None:
        say(f"{one.claim}\nthe paper: {one.figure}")
        for figure in finding.figures:
            say(f"  {figure.shown()}")
        say(f"{finding.verdict}: {finding.why}")
    say(f"written to {file}; copy it to {page.CLAIMS} and run make evidence to have it on {page.PAGE}")


def _run_all(
    commands: Mapping[str, str], more: list[str], device: str | None, folder: Path, found: dict[str, Any]
) -> str | None:
    """Why one of them could not be made, if it was the data that were missing."""
    from ..audit.claims.base import trimmed
    from ..data.base import MissingData

    for number, (run, command) in enumerate(commands.items()):
        place = folder / run.replace(" ", "-").replace(",", "").replace("/", "-")
        words = _on(shlex.split(command), device)
        found["commands"][run] = "cutlayer " + shlex.join(words)
        say(f"{number + 1} of {len(commands)}: {found['commands'][run]}")
        kept = place / ("compare.json" if words[0] == "compare" else "audit.json")
        if not kept.exists():
            try:
                _typed([*words, *more], place)
            except MissingData as error:
                return str(error)
        found["results"][run] = trimmed(json.loads(kept.read_text()))
    return None


def _typed(words: list[str], place: Path) -> None:
    """As if it had been typed here; a folder that was begun goes on."""
    from typer.main import get_command

    from .app import app
    from .options import CELLS

    begun = (place / CELLS).is_dir()
    rest = ["--resume", str(place)] if begun else [*words[1:], "--out", str(place)]
    get_command(app)([words[0], *rest], standalone_mode=False)


def _on(words: list[str], device: str | None) -> list[str]:
    """The command on another device than it says."""
    if device is None:
        return words
    if "--device" in words:
        at = words.index("--device")
        words = [*words[:at], *words[at + 2 :]]
    return [*words, "--device", device]


def _options(data_dir: Path | None, threads: int | None, jobs: int | None) -> list[str]:
    given = {"--data-dir": data_dir, "--threads": threads, "--jobs": jobs}
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _part(commands: Mapping[str, str], part: str | None) -> dict[str, str]:
    if part is None:
        return dict(commands)
    try:
        number, of = (int(one) for one in part.split("/"))
        assert 1 <= number <= of
    except (ValueError, AssertionError) as error:
        raise ValueError(f"--part is I/N, from 1/N to N/N; got {part!r}") from error
    return {name: command for place, (name, command) in enumerate(commands.items()) if place % of == number - 1}


def _commit() -> str:
    """Of the checkout, with a mark where it was changed since."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


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
