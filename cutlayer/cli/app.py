"""The command `cutlayer`. Heavy imports happen inside commands: `--help` loads no torch."""

import json
import sys
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..training.device import prepare
from . import audit as cli_audit
from . import check as cli_check
from . import compare as cli_compare
from . import deploy as cli_deploy
from . import estimates as cli_estimates
from . import generate as cli_generate
from . import layers as cli_layers
from . import new as cli_new
from . import reproduce as cli_reproduce
from . import tune as cli_tune
from .extras import extra_of
from .options import (
    AsJson,
    ChannelsLast,
    Code,
    Compiled,
    Crews,
    DataDir,
    Device,
    Engine,
    FleetCluster,
    LinkOption,
    OneGuard,
    Out,
    Precision,
    PrivateSeed,
    Recipe,
    Record,
    Resume,
    Threads,
    Track,
    plan_options,
    refuse_old_options,
)
from .resumable import Asked, resumable
from .terminal import Bar, Stop, end_if_not_kept, figures, halt_told, say, warn

INTERRUPTED = 130
REACHED = {True: ": met", False: ": missed", None: ""}  # a benchmark's goal

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Split learning that trains, guards, attacks and audits the cut.\n\n"
    "A network is cut: clients keep the first layers (head) and, in the U shape, the last (tail) with the labels; a "
    "server runs the body. Start with [bold]cutlayer demo[/bold].",
)


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"cutlayer {__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass


cli_audit.register(app)
cli_new.register(app)


@plan_options
def train(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    private_seed: PrivateSeed = None,
    device: Device = "cpu",
    precision: Precision = "",
    channels_last: ChannelsLast = False,
    compile: Compiled = False,
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: Resume = None,
    code: Code = None,
    record: Record = 0,
    link: LinkOption = None,
    engine: Engine = "local",
    cluster: FleetCluster = None,
    crews: Crews = None,
    track: Track = None,
    as_json: AsJson = False,
    *,
    asked: Asked,
) -> None:
    """Train a split model in this process and write history, checkpoints and the result.

    [bold]cutlayer train --guard 'LightSplit(ratio=8)' --epochs 5[/bold]
    Ctrl-C stops after the current step and keeps everything; --resume FOLDER goes on.
    [bold]cutlayer train --engine ray --clients 1000[/bold] has a server and crews of clients on a Ray cluster.
    """
    own = {"guard": guard, "private_seed": private_seed}
    changes |= {name: value for name, value in own.items() if value is not None}
    if record < 0:
        raise ValueError(f"--record is how many MiB to keep, from 0 (nothing) up; got {record}")
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine is local (this process) or ray; got {engine!r}")
    if engine == "local" and (cluster is not None or crews is not None):
        raise ValueError("--cluster and --crews belong to --engine ray")
    prepare(threads, device if engine == "local" else "cpu")
    from ..core.outside import load_named
    from ..engines.folder import load_plan, new_folder, scale_in_words
    from ..engines.local import start
    from ..engines.tracking import refuse_unknown, tracked
    from ..training.facts import compression as rates
    from ..training.facts.forecast import in_words
    from ..training.facts.link import Link
    from ..training.facts.privacy import lines
    from ..training.faster import Faster
    from ..training.plan.plan_text import change, read_plan

    over = Link.parse(link) if link is not None else None
    refuse_unknown(track or [])
    load_named(code or [])
    if resume is not None:
        # Who watches the server is the client's own business: that alone may be another from here on.
        named = "client_detectors"
        others = {named: changes.pop(named)} if plan is None and named in changes else {}
        chosen = load_plan(resume, change(read_plan(plan), changes) if plan or changes else None)
        chosen = change(chosen, others)
    else:
        chosen = change(read_plan(plan), changes)
    folder = resume or new_folder(out, "train")
    with Bar(estimates=True) as bar, Stop() as stop, halt_told(as_json, folder):

        def started(run: Any) -> None:
            asked.keep(folder)
            for line in [*scale_in_words(run.parts.scale), *run.parts.notes]:
                say(line)

        elsewhere = None
        if engine == "ray":
            from ..engines.ray.fleet import Fleet
            from ..engines.ray.fleet import train as on_ray

            elsewhere = partial(on_ray, fleet=Fleet(cluster or "local", crews, threads or 1), device=device)
        follow = start.Following(
            record=record << 20,
            link=over,
            on_start=started,
            on_step=lambda p: bar.show(f"epoch {p.epoch + 1} " + figures(p.terms), p.step / max(1, p.steps)),
            on_epoch=bar.note,
            stop=stop,
            elsewhere=elsewhere,
        )
        follow, tracking = tracked(follow, folder, track or [])
        result = start.train(
            chosen,
            folder,
            data_dir=data_dir,
            device=device if engine == "local" else "cpu",
            resume=resume is not None,
            follow=follow,
            faster=Faster(precision, channels_last, compile),
        )
        tracking.finished(result)
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
        end_if_not_kept(result.get("detectors", ()))
        return
    what = "test accuracy"
    if "mean_iou" in result:
        what = f"test mIoU {result['mean_iou']:.4f}, pixel accuracy"
    if "perplexity" in result:
        what = f"test perplexity {result['perplexity']:.2f}, next-token accuracy"
    say(f"{what} {result['accuracy']:.4f} after {result['epochs']} epochs ({result['seconds']:.1f} s)")
    if result["epochs"] == 0:
        say("nothing was trained: the weights are those it began with; give --epochs 1 or more to train")
    say(f"bytes a sample: {result['bytes_up']:.0f} up, {result['bytes_down']:.0f} down (all messages of a step)")
    if result["bytes_weights"]:
        say(f"weights that travel: {result['bytes_weights']:,.0f} bytes a sample")
    if fair := len(result.get("clients", ())) > 1 and result["fairness"]:
        best, worst = (f"{fair[name]:.3f} (client {fair[name + '_client']})" for name in ("best", "worst"))
        say(f"clients on data like their own: best {best}, worst {worst}, worst tenth {fair['worst_tenth']:.3f}")
    for line in rates.lines(result["rates"]):
        say(line)
    for line in in_words(result["link"]) if result.get("link") else ():
        say(line)
    for side in ("client", "server"):
        own = result["sides"][side]
        say(f"{side}: {own['parameters']:,} parameters, {own['macs']:,} multiply-accumulates a sample")
    for line in [*lines(result["privacy"]), *start.leaks(result)]:
        say(line)
    say(f"results in {folder}")
    end_if_not_kept(result.get("detectors", ()))


# The plan itself is in the folder's plan.json, with its secrets.
FASTER = ("precision", "channels_last", "compile")
app.command()(resumable(train, only=frozenset({"record", "link", "device", *FASTER})))


@app.command()
@plan_options
def memory(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    data_dir: DataDir = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What a client of a plan needs in memory: parameters, gradients, optimizer state and activations, counted.

    [bold]cutlayer memory --net 'ResNet18(depth=4)' --data CIFAR10[/bold]
    One row for a client that learns, one for the same with activation checkpointing (the head runs again for its
    backward pass), one for a frozen client (forward only). Nothing is trained. Writes memory.json and memory.png.
    """
    changes |= {"guard": guard} if guard is not None else {}
    prepare(1, "cpu")
    from ..engines.folder import new_folder
    from ..training.batches import task_of
    from ..training.facts.memory import breakdown
    from ..training.plan.plan_text import change, read_plan
    from .memory import picture, table

    chosen = change(read_plan(plan), changes)
    folder = new_folder(out, "memory")
    loaded = chosen.data.load(data_dir)
    found = breakdown(chosen, task_of(loaded.train, len(loaded.classes)))
    result = {"plan": repr(chosen), "client_memory": found}
    drawn = picture(found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.json").write_text(json.dumps(result, indent=1))
    (folder / "memory.png").write_bytes(drawn)
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
        return
    for line in table(found):
        say(line)
    say("working: what the largest layer reads and writes; of it and the activations only the larger is in the total")
    say(f"open {folder / 'memory.png'}")


@app.command()
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
    from ..engines.folder import new_folder

    names = names or (list(room.ON_A_GPU) if device == "cuda" else [])
    chosen = room.chosen(names)

    earlier = history.read(against) if against is not None else {}
    folder = new_folder(out, "bench")
    with Bar() as bar:
        rows = room.run(names, quick=quick, on_entry=lambda name, done: bar.show(name, done))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(rows, indent=1))
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


@app.command("list")
def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            help="guards, attacks, nets, data, partitions, optimizers, protocols, rounds, rules, roles, codecs, "
            "detectors, poisons, projections or bench"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """What can be typed where a spec is asked for, with one line about each."""
    from ..core.outside.announced import announced
    from ..core.spec import BASES, HOMES, bases, names, summary

    origins: dict[str, str] = {}
    if kind == "bench":
        from ..bench.run import ENTRIES

        things: dict[str, Any] = dict(ENTRIES)
    elif kind in HOMES:
        things = names(kind)
        offers, broken = announced() if kind in BASES else ([], {})
        for offer in offers:
            try:
                thing = offer.load()
            except ValueError as error:
                broken[offer.package] = str(error)
                continue
            if isinstance(thing, type) and issubclass(thing, bases(kind)):
                # A name that is there twice works with its origin in front, and nowhere else.
                name = offer.origin if offer.name in things else offer.name
                things[name], origins[name] = thing, offer.origin
        for package, why in broken.items():
            say(f"{package} announces plug-ins, but {why}")
    else:
        raise ValueError(f"there is no list of {kind!r}; there is {', '.join([*HOMES, 'bench'])}")
    rows = [
        {"name": name, "summary": summary(thing), "arguments": _arguments(thing)}
        | ({"origin": origins[name]} if name in origins else {})
        for name, thing in things.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        origin = f" [{row['origin']}]" if "origin" in row else ""
        print(f"{row['name']:{width}}  {row['summary']}{origin}")
        if row["arguments"]:
            print(f"{'':{width}}    {row['name'].rpartition(':')[2]}({row['arguments']})")
        about = getattr(things[row["name"]], "about", None)
        for line in about.lines() if about is not None else ():
            print(f"{'':{width}}    {line}")


def _arguments(thing: Any) -> str:
    """What stands between the brackets of a spec, with defaults; nothing for what is no spec."""
    from ..core.spec import signature

    return signature(thing) if is_dataclass(thing) and isinstance(thing, type) else ""


cli_check.register(app)
cli_layers.register(app)
cli_compare.register(app)
cli_deploy.register(app)
cli_generate.register(app)
cli_estimates.register(app)
cli_tune.register(app)
cli_reproduce.register(app)

data_app = typer.Typer(no_args_is_help=True, help="Look after data sets.")
app.add_typer(data_app, name="data")


@data_app.callback()
def _data() -> None:
    """Look after data sets on disk."""


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="A folder with data sets, as --data-dir takes it.")],
    as_json: AsJson = False,
) -> None:
    """Verify a data folder: which sets are there, counts, shapes, and checksums where they are known.

    Exits with 1 if a set that is there is not what it should be.
    """
    from ..data.check import check

    rows = check(folder)
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            mark = "ok     " if row["ok"] else "DAMAGED" if row["found"] else "absent "
            print(f"{mark}  {row['name']:16} {row['detail']}")
    if any(row["found"] and not row["ok"] for row in rows):
        raise SystemExit(1)


def main() -> None:
    """Every error a user can mend is one sentence on standard error; anything else is a bug and shows its trace."""
    from ..core.errors import USER_ERRORS, Halt
    from ..core.files import is_full, no_room

    try:
        refuse_old_options(sys.argv[1:])
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # Ctrl-C where no command was listening for it
            say("interrupted; nothing was left half-written")
        sys.exit(code if isinstance(code, int) else 0)
    except KeyboardInterrupt:
        say("interrupted; nothing was left half-written")
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if (extra := extra_of(error)) is None:
            raise
        say(f"error: this needs the package {error.name}, which is not installed: pip install 'cutlayer[{extra}]'")
        sys.exit(1)
    except USER_ERRORS as error:
        told = no_room(error.filename) if is_full(error) else error
        (warn if isinstance(told, Halt) else say)(f"error: {told}")
        sys.exit(getattr(told, "exit_code", 1))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _tell_usage(error)
        sys.exit(2)


# What other programs call what is called otherwise here.
ELSEWHERE = {
    "--lr": "--client-optimizer 'Adam(lr=0.001)' and --server-optimizer",
    "--learning-rate": "--client-optimizer 'Adam(lr=0.001)' and --server-optimizer",
    "--optimizer": "--client-optimizer and --server-optimizer",
    "--model": "--net",
    "--dataset": "--data",
    "--output": "--out",
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--workers": "--jobs of an audit, or --threads",
    "--defense": "--guard",
}


def _tell_usage(error: Any) -> None:
    """What was typed wrongly, in one sentence. The class of such errors is Typer's own, or click's in older ones."""
    if not (message := error.format_message()) or "\n" in message:
        error.show()  # a command without its arguments: its help
        return
    path = error.ctx.command_path if error.ctx is not None else "cutlayer"
    meant = ELSEWHERE.get(getattr(error, "option_name", "") or "")
    way_out = f"here it is {meant}" if meant else f"`{path} --help` says what there is"
    say(f"error: {message.rstrip('.?')}; {way_out}")
