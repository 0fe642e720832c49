"""The command `cutlayer`. Heavy imports happen inside commands: `--help` loads no torch."""

import json
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from . import audit as cli_audit
from . import bench as cli_bench
from . import check as cli_check
from . import compare as cli_compare
from . import deploy as cli_deploy
from . import estimates as cli_estimates
from . import generate as cli_generate
from . import layers as cli_layers
from . import new as cli_new
from . import reproduce as cli_reproduce
from . import train as cli_train
from . import tune as cli_tune
from .extras import extra_of
from .options import AsJson, refuse_empty_options, refuse_old_options
from .panels import in_panels
from .terminal import say, warn

INTERRUPTED = 130

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
cli_train.register(app)
cli_estimates.register(app)
cli_bench.register(app)


@app.command("list")
def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            help="guards, projections, attacks, codecs, rules, rounds, detectors, poisons, roles, nets, data, "
            "partitions, optimizers, schedules, protocols, starts, compressions, adapters, plans or bench"
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


in_panels(app)


def main() -> None:
    """Every error a user can mend is one sentence on standard error; anything else is a bug and shows its trace."""
    from ..core.errors import USER_ERRORS, Halt, lacks_memory
    from ..core.files import is_full, no_room
    from ..core.outside.files import from_named, where

    try:
        refuse_old_options(sys.argv[1:])
        refuse_empty_options(sys.argv[1:])
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
    except SystemExit as error:
        if not from_named(error):
            raise
        say(f"error: {where(error)}")  # a plug-in's own line: it ends no command as if all were done
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "format_message"):
            _tell_usage(error)
            sys.exit(2)
        if lacks_memory(error):
            say("error: this needs more memory than is here: lower --batch-size or --images, or narrow the network")
        elif from_named(error):
            say(f"error: {where(error)}")  # a guard's or a network's own line
        else:
            raise
        sys.exit(1)


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
