"""The options of the command line, each written once: name, help and type."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..training.plan.fields import FIELDS, RENAMED, option

# ------------------------------------------------------------------ options that are fields of a Plan
_PLAN = "The plan"
Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan to start from: FILE.py:FUNCTION (a recipe), or text such as 'Plan(epochs=3)'. "
        "The options below change single fields of it.",
    ),
]


def _plan_option(name: str) -> Any:
    """The option that changes one field of a plan."""
    field = FIELDS[name]
    flags = [option(name)]
    if field.type is bool:
        flags = [f"{flags[0]}/{field.off}" if field.off else flags[0]]
    return Annotated[field.type | None, typer.Option(*flags, help=field.told, rich_help_panel=_PLAN)]


OneGuard = _plan_option("guard")
PrivateSeed = Annotated[
    int | None,
    typer.Option(
        help="Fix the clients' secrets (heads, batch order, keys) for a reproducible experiment. "
        "Default: drawn afresh and kept in private.json."
    ),
]

# ------------------------------------------------------------------ options of every command
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precision = Annotated[
    str,
    typer.Option(help="float32 (without TF32), tf32 or bf16: faster, with other bits. Default: as torch is set."),
]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Another order in memory: other bits.")]
Im2col = Annotated[
    bool,
    typer.Option("--im2col", help="Convolutions of small maps as matrix products, for a GPU: other bits."),
]
Compiled = Annotated[bool, typer.Option("--compile", help="torch.compile: a slow start, other bits.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: $OMP_NUM_THREADS, else all cores.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with data sets; else $CUTLAYER_DATA, else ./data.")]
Out = Annotated[Path | None, typer.Option(help="A new folder for the results. Default: runs/<command>-<time>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Guards = Annotated[
    list[str] | None,
    typer.Option(
        help="A guard, or all. Repeatable; braces stand for one guard each: 'Quantize(bits={2,4,8})'. "
        "The unguarded cut is always there. See: cutlayer list guards"
    ),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        help="An attack. Repeatable. Default: Decoder, in audits also Linked where a guard draws anew. "
        "See: cutlayer list attacks"
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Go on with an interrupted run, to the same numbers as an uninterrupted one."
    ),
]

Code = Annotated[
    list[str] | None,
    typer.Option(
        help="A file (my.py) or module outside the package that the plan of a run's folder is made of: such a plan "
        "imports nothing that was not named here. Repeatable."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        help="Also say how long it would take over a link: 20mbit,40ms (rate, round trip), or 20mbit/100mbit,40ms.",
    ),
]
Record = Annotated[
    int, typer.Option(help="Keep the newest MiB of what the server receives, for `cutlayer attack`. 0: nothing.")
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        help="Also tell tensorboard, mlflow or wandb what happens (extras of these names). Repeatable. "
        "events.jsonl in the folder has it in any case."
    ),
]
AuxData = Annotated[
    str | None,
    typer.Option(help="The attacker's images come from another data set, e.g. FashionMNIST. See: cutlayer list data"),
]
AuxWithout = Annotated[list[int] | None, typer.Option(help="A label the attacker has no images of. Repeatable.")]
Budget = Annotated[
    str | None,
    typer.Option(
        help="All attacks at once: quick (two cores, minutes), standard (adds active ones and three seeds) or paper "
        "(published sizes, for a GPU)."
    ),
]
Secrets = Annotated[
    str | None,
    typer.Option(
        help="What the verdict goes by, the worst of it: images (or records, series, texts), labels, attribute, "
        "membership, with commas between. Default: all that an attack was after."
    ),
]
WithAlone = Annotated[
    bool,
    typer.Option(
        "--alone/--no-alone",
        help="Also train what a client could do without a server: twice, with a small network of its own and with "
        "one that costs as much as the guard.",
    ),
]
Tries = Annotated[
    int | None,
    typer.Option(help="How often an attack is begun that fails on the unguarded cut. Default: 3."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Cells that are made at once, each with its part of the cores: on a local Ray where it is installed, "
        "else in processes. Default: one, in this process."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Make cells on a Ray cluster: local (started here, for as long as it takes), auto (the one that runs on "
        "this machine) or an address; processes: without Ray. It sees all data and secrets.",
    ),
]
CpusEach = Annotated[float | None, typer.Option(help="CPUs of a cluster for one cell. Default: 1.")]
GpusEach = Annotated[
    float | None,
    typer.Option(help="GPUs of a cluster for one cell, e.g. 0.25. Default: 1 with --device cuda, shared if local."),
]
Engine = Annotated[
    str, typer.Option(help="Who carries the messages: local (this process), or ray (a fleet on a cluster).")
]
FleetCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="WHERE",
        help="Where the fleet of --engine ray is: local (default), auto or an address. It sees all data and secrets.",
    ),
]
Crews = Annotated[
    int | None, typer.Option(help="Processes that play the clients of --engine ray. Default: one a CPU but one.")
]
GoOn = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="FOLDER",
        help="Go on in a folder that was interrupted, with the options it was begun with: the missing cells only.",
    ),
]

CELLS = "cells"  # the folder in a folder of results where finished parts are kept while others are made

# An audit takes several guards, so `guard` is each command's own.
PLAN_OPTIONS = {name: _plan_option(name) for name in FIELDS if name != "guard"}


def refuse_old_options(words: Sequence[str]) -> None:
    """Options that were renamed with the plan's fields; "--own" was the other half of "--shared"."""
    old = {option(name): option(new) for name, new in RENAMED.items()}
    old["--own"] = FIELDS["shared_client_network"].off
    for word in words:
        if (typed := word.partition("=")[0]) in old:
            raise ValueError(f"{typed} is called {old[typed]} since version 0.2")


def refuse_empty_options(words: Sequence[str]) -> None:
    """What a shell makes of a variable that is not set was taken for an option that was not typed."""
    for word, behind in zip(words, [*words[1:], None], strict=False):
        if word.startswith("--") and (behind == "" or word.endswith("=")):
            raise ValueError(f"{word.removesuffix('=')} has nothing behind it: give it a value, or leave it out")


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` an option for every field above. What was typed arrives in its argument `changes`."""
    own = inspect.signature(command)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in PLAN_OPTIONS.items()
    ]
    kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values() if p.name not in ("changes", "asked")]

    def typed(**values: Any) -> None:
        changes = {name: values.pop(name) for name in PLAN_OPTIONS}
        command(changes={name: value for name, value in changes.items() if value is not None}, **values)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = own.replace(parameters=[*kept, *extra])  # type: ignore[attr-defined]
    typed.__annotations__ = {p.name: p.annotation for p in [*kept, *extra]}
    return typed


def options_of(shared: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `shared`, which does its work; what `shared` has after a `*` is not typed."""
    whole = inspect.signature(shared)
    typed = [one for one in whole.parameters.values() if one.kind is not inspect.Parameter.KEYWORD_ONLY]

    def given(command: Callable[..., None]) -> Callable[..., None]:
        command.__signature__ = whole.replace(parameters=typed)  # type: ignore[attr-defined]
        return command

    return given
