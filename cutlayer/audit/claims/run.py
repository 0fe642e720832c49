"""An experiment's commands, piece by piece: every training of a comparison and every seed of an audit is kept as a file.

Several processes may share a folder, each with its part of the pieces; whoever goes on makes what is missing, of an audit the
cells. A piece is made by the functions behind `cutlayer compare` and `cutlayer audit`, and needs torch and numpy alone.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

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
from ..parallel import PROCESSES, Where, spread
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
    tries: int | None = field(default=None, repr=False)


def read(command: str) -> Typed:
    """A command of an experiment; it takes the options that experiments use, with the meaning they have when typed."""
    kind, *words = shlex.split(command)
    told = vars(_parser().parse_args(words))
    fields = {name: told[name] for name in FIELDS if name != "guard" and told[name] is not None}
    plan = change(read_plan(told["plan"]), fields)
    count = told["seeds"] or (3 if told["budget"] == "standard" else 1)  # as the command has it
    seeds = tuple(range(plan.seed, plan.seed + count))
    if kind == "compare":
        return Typed(kind, plan, seeds, told["device"], tuple(variants(plan, told["with"] or [])))
    return Typed(
        kind, plan, seeds, told["device"], guards=tuple(told["guard"] or ()), attacks=tuple(told["attack"] or ()),
        budget=told["budget"], images=told["images"], aux_without=tuple(told["aux_without"] or ()), aux_data=told["aux_data"] or "", tries=told["tries"],
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
    parser.add_argument("--tries", type=int)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--no-alone", action="store_true")
    for name, one in FIELDS.items():
        if name == "guard":
            continue
        if one.type is bool:
            parser.add_argument(option(name), dest=name, action="store_true", default=None)
            if one.off:
                parser.add_argument(one.off, dest=name, action="store_false", default=None)
        elif one.type == list[str]:
            parser.add_argument(option(name), dest=name, action="append")
        else:
            parser.add_argument(option(name), dest=name, type=one.type)
    return parser


def fewer(command: str, seeds: int | None) -> str:
    """The same with no more than so many seeds, the first ones."""
    if seeds is None:
        return command
    return re.sub(r"(?<=--seeds )\d+", lambda found: str(min(int(found[0]), seeds)), command)


class Lost(RuntimeError):
    """A piece that is not whole is none."""


@dataclass(frozen=True)
class Means:
    """With what it is measured; no figure hangs on it, but for rounding on another device."""

    data_dir: Path | None = None
    device: str | None = None  # None: as the commands say
    jobs: int = 1  # cells of an audit that are made at once, in processes

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"--jobs is at least 1; got {self.jobs}")


class WithoutPictures(ResultStore):
    """No verdict looks at pictures, and they are nearly all that cells weigh."""

    def put(self, name: str, data: Any, **tensors: Tensor) -> None:
        super().put(name, data, **{what: value for what, value in tensors.items() if what != "pictures"})


@dataclass(frozen=True)
class Piece:
    """What is made at once: a variant under a seed, or an audit under a seed."""

    run: str
    what: str
    asked: str  # the plan and what is tried on it: another budget in the same folder takes nothing of this one
    make: Callable[[Path], list[Any]]  # given a folder for what is finished of it

    @property
    def file(self) -> str:
        return f"{self._name}.json"

    @property
    def cells(self) -> str:
        return f"{self._name}-cells"

    @property
    def _name(self) -> str:
        return sha256(f"{self.run} {self.what} {self.asked}".encode()).hexdigest()[:16]


def pieces(run: str, typed: Typed, means: Means) -> list[Piece]:
    shelf = Shelf(means.data_dir)
    found = []
    for seed in typed.seeds:
        if typed.command == "compare":
            for one in typed.variants:
                make = _training(one, seed, means.data_dir, typed.device)
                found.append(Piece(run, f"{one.name}, seed {seed}", repr(one.plan), make))
        else:
            asked = repr(replace(typed, seeds=(), device="")) + (f" tries={typed.tries}" if typed.tries else "")
            found.append(Piece(run, f"seed {seed}", asked, _audit(typed, seed, shelf, means)))
    return found


def _training(one: Variant, seed: int, data_dir: Path | None, device: str) -> Callable[[Path], list[Any]]:
    def make(_: Path) -> list[Any]:
        cells = ResultStore()
        rows = compare([one], seeds=(seed,), data_dir=data_dir, device=device, cells=cells)
        if cells.lost:
            raise Lost(rows[0]["failed"])
        return rows

    return make


def _audit(typed: Typed, seed: int, shelf: Shelf, means: Means) -> Callable[[Path], list[Any]]:
    def make(cells: Path) -> list[Any]:
        loaded = shelf(typed.plan)
        task = task_of(loaded.train, len(loaded.classes))
        other = spec(typed.aux_data, "data").load(means.data_dir) if typed.aux_data else None
        named = read_guards(text for text in typed.guards if text != "all")
        wanted = AuditSpec(
            typed.plan, [typed.plan.guard, *named], [spec(text, "attacks") for text in typed.attacks],
            every() if "all" in typed.guards else (), seeds=(seed,), images=typed.images, alone=False,
            auxiliary=Auxiliary(other, typed.aux_without, typed.aux_data), tries=typed.tries,
        )  # fmt: skip
        more = suite(typed.budget, task, typed.plan.protocol.labels_stay_home) if typed.budget else []
        if not wanted.attacks and not more:
            more = usual([*wanted.guards, *wanted.optional_guards], task)
        wanted = replace(wanted, optional_attacks=more)
        store = WithoutPictures(cells, wanted.identity)
        resources = Resources(typed.device, store=store)
        if means.jobs > 1:
            spread(wanted, loaded, resources, Where(PROCESSES, means.jobs), lambda shown: None)
        found = audit(wanted, loaded, resources).as_dict()
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
    one: Experiment, budget: str, folder: Path, share: Share, means: Means = Means(), seeds: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Make this process's share of what is missing; the verdict, once all is there. `seeds`: no more than so many."""
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds is at least 1; got {seeds}")
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
        lacks = _stage(_short(one.commands(budget), seeds), folder, share, told, means, say)
        if lacks is None and one.after is not None:
            lacks = _stage(_short(one.after(told["results"], budget), seeds), folder, share, told, means, say)
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


def _short(commands: Mapping[str, str], seeds: int | None) -> dict[str, str]:
    return {run: fewer(command, seeds) for run, command in commands.items()}


def _stage(
    commands: Mapping[str, str], folder: Path, share: Share, told: dict[str, Any], means: Means,
    say: Callable[[str], None],
) -> dict[str, Any] | None:  # fmt: skip
    """What these commands lack, if anything: data, or pieces that are made elsewhere or later."""
    told["commands"] |= {run: f"cutlayer {command}" for run, command in commands.items()}
    typed = {run: read(command) for run, command in commands.items()}
    if means.device is not None:
        typed = {run: replace(one, device=means.device) for run, one in typed.items()}
    every_piece = [piece for run, one in typed.items() for piece in pieces(run, one, means)]
    lacking = {piece.run for piece in every_piece if not (folder / piece.file).exists()}
    try:
        _refuse_what_cannot_be(typed, lacking, means.data_dir)
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
            made = made_or_failed(partial(piece.make, folder / piece.cells), MissingData)
        except MissingData as error:
            return {"not_measured": str(error)}
        if isinstance(made, Failed):
            told["failed"].append(f"{piece.run}, {piece.what}: {made}")
            say(told["failed"][-1])
        else:
            write_text(path, json.dumps(made, indent=1))
            shutil.rmtree(folder / piece.cells, ignore_errors=True)
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
