"""An experiment's commands, piece by piece: every training of a comparison and every seed of an audit is kept as a file.

Several processes may share a folder, each with its part of the pieces; whoever goes on makes what is missing. A piece is made by
the functions behind `cutlayer compare` and `cutlayer audit`, and needs torch and numpy alone.
"""

import argparse
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...attacks import suite, usual
from ...core.files import write_text
from ...core.spec import spec
from ...data.auxiliary import Auxiliary
from ...data.base import MissingData
from ...engines.taken import LOCK, FolderLock
from ...guards import every
from ...training.batches import task_of
from ...training.plan.fields import FIELDS, option
from ...training.plan.plan import Plan
from ...training.plan.plan_text import change, read_guards, read_plan
from ..compare.run import Shelf, check, compare
from ..compare.variant_text import Variant, variants
from ..jobs import Failed, made_or_failed
from ..matrix import audit
from ..spec import AuditSpec, Resources
from ..store import ResultStore
from ..verdicts import guards_of, verdict
from .base import Data, Experiment, trimmed


@dataclass(frozen=True)
class Typed:
    """What a command line of an experiment asks for."""

    command: str
    plan: Plan
    seeds: tuple[int, ...]
    device: str
    variants: tuple[Variant, ...] = ()  # of a comparison
    guards: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    budget: str | None = None
    images: int = 256
    aux_without: tuple[int, ...] = ()
    aux_data: str = ""


def read(command: str) -> Typed:
    """A command of an experiment; it takes the options that experiments use, with the meaning they have when typed."""
    name, *words = shlex.split(command)
    told = vars(_parser().parse_args(words))
    fields = {field: told[field] for field in FIELDS if field != "guard" and told[field] is not None}
    plan = change(read_plan(told["plan"]), fields)
    count = told["seeds"] or (3 if told["budget"] == "standard" else 1)  # as the command has it
    seeds = tuple(range(plan.seed, plan.seed + count))
    if name == "compare":
        return Typed(name, plan, seeds, told["device"], tuple(variants(plan, told["with"] or [])))
    return Typed(
        name, plan, seeds, told["device"], guards=tuple(told["guard"] or ()), attacks=tuple(told["attack"] or ()),
        budget=told["budget"], images=told["images"], aux_without=tuple(told["aux_without"] or ()), aux_data=told["aux_data"] or "",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("plan", nargs="?")
    for name in ("--with", "--guard", "--attack"):
        parser.add_argument(name, action="append")
    parser.add_argument("--aux-without", action="append", type=int)
    parser.add_argument("--aux-data")
    parser.add_argument("--budget")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--no-alone", action="store_true")
    for name, field in FIELDS.items():
        if name == "guard":
            continue
        if field.type is bool:
            parser.add_argument(option(name), dest=name, action="store_true", default=None)
            if field.off:
                parser.add_argument(field.off, dest=name, action="store_false", default=None)
        elif field.type == list[str]:
            parser.add_argument(option(name), dest=name, action="append")
        else:
            parser.add_argument(option(name), dest=name, type=field.type)
    return parser


class Lost(RuntimeError):
    """A piece that is not whole is none."""


@dataclass(frozen=True)
class Piece:
    """What is made at once: a variant under a seed, or an audit under a seed."""

    run: str
    what: str
    asked: str  # the plan and what is tried on it: another budget in the same folder takes nothing of this one
    make: Callable[[], list[Any]]

    @property
    def file(self) -> str:
        return f"{sha256(f'{self.run} {self.what} {self.asked}'.encode()).hexdigest()[:16]}.json"


def pieces(run: str, typed: Typed, data_dir: Path | None) -> list[Piece]:
    shelf = Shelf(data_dir)
    found = []
    for seed in typed.seeds:
        if typed.command == "compare":
            for one in typed.variants:
                make = _training(one, seed, data_dir, typed.device)
                found.append(Piece(run, f"{one.name}, seed {seed}", repr(one.plan), make))
        else:
            asked = repr(replace(typed, seeds=(), device=""))
            found.append(Piece(run, f"seed {seed}", asked, _audit(typed, seed, shelf, data_dir)))
    return found


def _training(one: Variant, seed: int, data_dir: Path | None, device: str) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        cells = ResultStore()
        rows = compare([one], seeds=(seed,), data_dir=data_dir, device=device, cells=cells)
        if cells.lost:
            raise Lost(rows[0]["failed"])
        return rows

    return make


def _audit(typed: Typed, seed: int, shelf: Shelf, data_dir: Path | None) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        loaded = shelf(typed.plan)
        task = task_of(loaded.train, len(loaded.classes))
        other = spec(typed.aux_data, "data").load(data_dir) if typed.aux_data else None
        named = read_guards(text for text in typed.guards if text != "all")
        wanted = AuditSpec(
            typed.plan, [typed.plan.guard, *named], [spec(text, "attacks") for text in typed.attacks],
            every() if "all" in typed.guards else (), seeds=(seed,), images=typed.images, alone=False,
            auxiliary=Auxiliary(other, typed.aux_without, typed.aux_data),
        )  # fmt: skip
        more = suite(typed.budget, task, typed.plan.protocol.labels_stay_home) if typed.budget else []
        if not wanted.attacks and not more:
            more = usual([*wanted.guards, *wanted.optional_guards], task)
        found = audit(replace(wanted, optional_attacks=more), loaded, Resources(typed.device)).as_dict()
        if found["failed"]:
            raise Lost(f"{'; '.join(found['failed'])} failed")
        return [found]

    return make


def whole(typed: Typed, made: Sequence[Any]) -> dict[str, Any]:
    """The pieces of a run as one result, without what no verdict reads."""
    if typed.command == "compare":
        rows = sorted((row for one in made for row in one), key=lambda row: row["seed"])
        return trimmed({"plan": repr(typed.plan), "rows": rows})
    parts = [one[0] for one in made]
    first = parts[0]
    rows = [row for part in parts for row in part["rows"]]
    judged = [verdict(rows, first["floors"], guard) for guard in guards_of(rows)]
    return trimmed(
        {
            **first, "rows": rows, "poisoned": [row for part in parts for row in part["poisoned"]],
            "verdicts": [{"guard": one.guard, "grade": one.grade, "leak": one.leak, "sentence": one.sentence} for one in judged],
        }
    )  # fmt: skip


# ------------------------------------------------------------------------------ all of an experiment
@dataclass(frozen=True)
class Share:
    """Which pieces this process makes, and until when."""

    number: int = 1
    of: int = 1
    ends: float | None = None  # on the clock of time.monotonic

    @classmethod
    def parse(cls, text: str | None, minutes: float | None = None) -> "Share":
        if minutes is not None and not minutes > 0:
            raise ValueError(f"--minutes is above 0, or left out for as long as it takes; got {minutes:g}")
        ends = None if minutes is None else time.monotonic() + 60 * minutes
        if text is None:
            return cls(ends=ends)
        try:
            number, of = (int(one) for one in text.split("/"))
        except ValueError as error:
            raise ValueError(f"--part is I/N, from 1/N to N/N; got {text!r}") from error
        if not 1 <= number <= of:
            raise ValueError(f"--part is I/N, from 1/N to N/N; got {text!r}")
        return cls(number, of, ends)

    @property
    def over(self) -> bool:
        return self.ends is not None and time.monotonic() > self.ends


def reproduce(
    one: Experiment, budget: str, folder: Path, share: Share, data_dir: Path | None = None, device: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Make this process's share of what is missing; the verdict, once all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "name": one.name,
        "budget": budget,
        "commit": commit(),
        "commands": {},
        "results": {},
        "failed": [],
    }
    lock = FolderLock(folder, f"{LOCK}-{share.number}-of-{share.of}")  # who makes other pieces may do so beside us
    try:
        lacks = _stage(one.commands(budget), folder, share, told, data_dir, device, say)
        if lacks is None and one.after is not None:
            lacks = _stage(one.after(told["results"], budget), folder, share, told, data_dir, device, say)
    finally:
        lock.release()
    told["seeds"] = sorted({row["seed"] for data in told["results"].values() for row in data["rows"]})
    if lacks is None:
        finding = one.judge(told["results"])
        told |= {
            "verdict": finding.verdict,
            "why": finding.why,
            "figures": [list(figure) for figure in finding.figures],
        }
    else:
        told |= lacks
    write_text(folder / f"{one.name}.json", json.dumps(told, indent=1))
    return told


def _stage(
    commands: Mapping[str, str], folder: Path, share: Share, told: dict[str, Any], data_dir: Path | None,
    device: str | None, say: Callable[[str], None],
) -> dict[str, Any] | None:  # fmt: skip
    """What these commands lack, if anything: data, or pieces that are made elsewhere or later."""
    told["commands"] |= {run: f"cutlayer {command}" for run, command in commands.items()}
    typed = {run: read(command) for run, command in commands.items()}
    if device is not None:
        typed = {run: replace(one, device=device) for run, one in typed.items()}
    every_piece = [piece for run, one in typed.items() for piece in pieces(run, one, data_dir)]
    try:
        _refuse_what_cannot_be(
            typed, {piece.run for piece in every_piece if not (folder / piece.file).exists()}, data_dir
        )
    except MissingData as error:
        return {"not_measured": str(error)}
    for place, piece in enumerate(every_piece):
        path = folder / piece.file
        if path.exists() or place % share.of != share.number - 1:
            continue
        if share.over:
            break
        say(f"{place + 1} of {len(every_piece)}: {piece.run}, {piece.what}")
        try:
            made = made_or_failed(piece.make, MissingData)
        except MissingData as error:
            return {"not_measured": str(error)}
        if isinstance(made, Failed):
            told["failed"].append(f"{piece.run}, {piece.what}: {made}")
            say(told["failed"][-1])
        else:
            write_text(path, json.dumps(made, indent=1))
    for run, one in typed.items():
        own = [folder / piece.file for piece in every_piece if piece.run == run]
        if all(path.exists() for path in own):
            told["results"][run] = whole(one, [json.loads(path.read_text()) for path in own])
    missing = sum(not (folder / piece.file).exists() for piece in every_piece)
    return {"unfinished": f"{missing} of {len(every_piece)} pieces are not made yet"} if missing else None


def _refuse_what_cannot_be(typed: Mapping[str, Typed], runs: Collection[str], data_dir: Path | None) -> None:
    """A file that is not there, or a variant that cannot be built, is said before anything is trained."""
    for run in runs:
        one = typed[run]
        if one.command == "compare":
            check(one.variants, one.seeds, data_dir)
        else:
            one.plan.data.load(data_dir)
        if one.aux_data:
            spec(one.aux_data, "data").load(data_dir)


def commit() -> str:
    """Of the checkout, with a mark where it was changed since."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def shown(data: Data, whose: str = "paper") -> list[str]:
    """What a reader is told at the end."""
    if "not_measured" in data:
        return [f"not measured: {data['not_measured']}"]
    if "unfinished" in data:
        return [data["unfinished"]]
    from .base import Figure

    return [*(f"  {Figure(*one).shown(whose)}" for one in data["figures"]), f"{data['verdict']}: {data['why']}"]
