"""The options of the command line, each written once: name, help and type."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

# ------------------------------------------------------------------ options that are fields of a Plan
_PLAN = "The plan"
_SPEC = " See: cutlayer list "
Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan to start from: FILE.py:FUNCTION (a recipe), or text such as 'Plan(epochs=3)'. "
        "The options below change single fields of it.",
    ),
]
Net = Annotated[
    str | None, typer.Option(help="Network, e.g. 'ResNet18(depth=2)'." + _SPEC + "nets", rich_help_panel=_PLAN)
]
Data = Annotated[
    str | None,
    typer.Option(help="Data set, e.g. CIFAR10 or 'Npz(path=\"my.npz\")'." + _SPEC + "data", rich_help_panel=_PLAN),
]
Protocol = Annotated[
    str | None, typer.Option(help="Vanilla, UShaped or Bypass; Federated: no cut.", rich_help_panel=_PLAN)
]
Guarded = Annotated[
    int | None,
    typer.Option(help="How many clients use the guard, the first ones. Default: all.", rich_help_panel=_PLAN),
]
Fusion = Annotated[
    str | None,
    typer.Option(help="Bypass: how what stayed home rejoins. residual, concat or hybrid.", rich_help_panel=_PLAN),
]
Home = Annotated[
    float | None, typer.Option(help="Bypass: share of the channels that never leave.", rich_help_panel=_PLAN)
]
Clients = Annotated[int | None, typer.Option(help="How many clients there are.", rich_help_panel=_PLAN)]
Partition = Annotated[
    str | None,
    typer.Option(
        help="Who holds what: IID, 'Dirichlet(alpha=0.3)', 'Labels(m=2)', ByIdentity.", rich_help_panel=_PLAN
    ),
]
Shared = Annotated[
    bool | None,
    typer.Option("--shared/--own", help="One head handed on (SCH), or one per client (PCH).", rich_help_panel=_PLAN),
]
Rounds = Annotated[
    str | None,
    typer.Option(
        help="Relay (one after the other), Wave (all at once, one step), 'SplitFed(version=1)' (merged after --turn "
        "batches)." + _SPEC + "rounds",
        rich_help_panel=_PLAN,
    ),
]
Rule = Annotated[
    str | None,
    typer.Option(
        help="How what clients bring is merged, e.g. FedAvg, 'FedMuon(lr=0.05)', Krum." + _SPEC + "rules",
        rich_help_panel=_PLAN,
    ),
]
Roles = Annotated[
    str | None,
    typer.Option(
        help="Who learns: AllActive, or 'Frozen(share=0.5)': the others run forward only." + _SPEC + "roles",
        rich_help_panel=_PLAN,
    ),
]
Take = Annotated[int | None, typer.Option(help="Clients drawn for each pass. Default: all.", rich_help_panel=_PLAN)]
Watch = Annotated[
    list[str] | None,
    typer.Option(
        help="A detector with which clients watch the server, e.g. GradientScrutinizer; it stops them. Repeatable."
        + _SPEC
        + "detectors",
        rich_help_panel=_PLAN,
    ),
]
ServerWatch = Annotated[
    list[str] | None,
    typer.Option(
        help="A detector with which the server watches the clients, e.g. ConsensusCosine; it says who is suspect. "
        "Repeatable." + _SPEC + "detectors",
        rich_help_panel=_PLAN,
    ),
]
Poison = Annotated[
    str | None,
    typer.Option(
        help="Experiments: what malicious clients do to their own samples, e.g. 'BadNets(share=0.3)'."
        + _SPEC
        + "poisons",
        rich_help_panel=_PLAN,
    ),
]
Turn = Annotated[
    int | None,
    typer.Option(
        help="Batches a client learns from per turn (local steps); 0: its whole epoch.", rich_help_panel=_PLAN
    ),
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.", rich_help_panel=_PLAN)]
BatchSize = Annotated[int | None, typer.Option("--batch", help="Samples per step.", rich_help_panel=_PLAN)]
Pieces = Annotated[
    int | None,
    typer.Option(help="Pieces a batch travels in, all in flight at once: for slow links.", rich_help_panel=_PLAN),
]
Down = Annotated[str | None, typer.Option(help="How u comes down, e.g. 'Quantize(bits=8)'.", rich_help_panel=_PLAN)]
Back = Annotated[
    str | None,
    typer.Option(
        help="How gradients travel, both ways, e.g. 'Quantize(bits=8, rounding=\"stochastic\")'.",
        rich_help_panel=_PLAN,
    ),
]
ClientOptimizer = Annotated[
    str | None, typer.Option(help="e.g. 'SGD(lr=0.05, momentum=0.9)'." + _SPEC + "optimizers", rich_help_panel=_PLAN)
]
ServerOptimizer = Annotated[str | None, typer.Option(help="The same, for the body.", rich_help_panel=_PLAN)]
Schedule = Annotated[str | None, typer.Option(help="Constant, Cosine or 'Steps(every=30)'.", rich_help_panel=_PLAN)]
Frozen = Annotated[
    list[str] | None,
    typer.Option(
        "--frozen", help="A part that does not train: head, body or tail. Repeatable.", rich_help_panel=_PLAN
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Start from a whole network's weights: .safetensors, or a torch state dict (never executed).",
        rich_help_panel=_PLAN,
    ),
]
SkipTail = Annotated[
    bool | None,
    typer.Option("--skip-tail", help="Leave the classifier out of --weights: other classes.", rich_help_panel=_PLAN),
]
Patience = Annotated[
    int | None,
    typer.Option(help="Stop after so many epochs without a better validation accuracy.", rich_help_panel=_PLAN),
]
Val = Annotated[
    float | None, typer.Option(help="Share of the training data used for validation.", rich_help_panel=_PLAN)
]
Aux = Annotated[
    int | None, typer.Option(help="Training samples set aside as the attacker's own data.", rich_help_panel=_PLAN)
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Public seed: body, public maps, partition. A run is repeated exactly by this and --private-seed.",
        rich_help_panel=_PLAN,
    ),
]

OneGuard = Annotated[
    str | None, typer.Option(help="Guard, e.g. 'LightSplit(ratio=8)'." + _SPEC + "guards", rich_help_panel=_PLAN)
]
PrivateSeed = Annotated[
    int | None,
    typer.Option(
        help="Fix the clients' secrets (heads, batch order, keys) for a reproducible experiment. "
        "Default: drawn afresh and kept in private.json."
    ),
]

# ------------------------------------------------------------------ options of every command
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads for torch (default: all cores).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with data sets; else $CUTLAYER_DATA, else ./data.")]
Out = Annotated[Path | None, typer.Option(help="A new folder for the results. Default: runs/<command>-<time>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Guards = Annotated[
    list[str] | None,
    typer.Option(
        help="A guard, or all. Repeatable; braces stand for one guard each: 'Quantize(bits={2,4,8})'. "
        "The unguarded cut is always there." + _SPEC + "guards"
    ),
]
Attacks = Annotated[
    list[str] | None, typer.Option(help="An attack. Repeatable. Default: Decoder." + _SPEC + "attacks")
]
Resume = Annotated[
    Path | None, typer.Option(help="Go on with an interrupted run, to the same numbers as an uninterrupted one.")
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

AuxData = Annotated[
    str | None,
    typer.Option(help="The attacker's images come from another data set, e.g. FashionMNIST." + _SPEC + "data"),
]
AuxWithout = Annotated[list[int] | None, typer.Option(help="A label the attacker has no images of. Repeatable.")]
Budget = Annotated[
    str | None,
    typer.Option(
        help="All attacks at once: quick (two cores, minutes), standard (adds active ones and three seeds) or paper "
        "(published sizes, for a GPU)."
    ),
]
Jobs = Annotated[
    int, typer.Option(help="Processes that share the work, each with its part of the cores. 1: this one alone.")
]
GoOn = Annotated[
    Path | None, typer.Option("--resume", help="Go on with an interrupted audit: the missing cells only.")
]

CELLS = "cells"  # the folder in a folder of results where finished parts are kept while others are made

# One line a field: the option that changes it, and where the names it takes are listed.
PLAN_OPTIONS: dict[str, tuple[Any, str]] = {
    "net": (Net, "nets"),
    "data": (Data, "data"),
    "protocol": (Protocol, "protocols"),
    "guarded": (Guarded, ""),
    "home": (Home, ""),
    "fusion": (Fusion, ""),
    "clients": (Clients, ""),
    "partition": (Partition, "partitions"),
    "shared": (Shared, ""),
    "rounds": (Rounds, "rounds"),
    "rule": (Rule, "rules"),
    "roles": (Roles, "roles"),
    "take": (Take, ""),
    "watch": (Watch, ""),
    "server_watch": (ServerWatch, ""),
    "poison": (Poison, "poisons"),
    "turn": (Turn, ""),
    "epochs": (Epochs, ""),
    "batch": (BatchSize, ""),
    "pieces": (Pieces, ""),
    "down": (Down, "guards"),
    "back": (Back, "guards"),
    "client_optimizer": (ClientOptimizer, "optimizers"),
    "server_optimizer": (ServerOptimizer, "optimizers"),
    "schedule": (Schedule, "schedules"),
    "frozen": (Frozen, ""),
    "weights": (Weights, ""),
    "skip_tail": (SkipTail, ""),
    "patience": (Patience, ""),
    "val": (Val, ""),
    "aux": (Aux, ""),
    "seed": (Seed, ""),
}


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` an option for every field above. What was typed arrives in its argument `changes`."""
    own = inspect.signature(command)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, (option, _) in PLAN_OPTIONS.items()
    ]
    kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "changes"]

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
