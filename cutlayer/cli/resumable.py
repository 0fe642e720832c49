"""Commands that go on where they stopped: a folder of results holds the whole command that began it.

`command.json` is written with the first thing that is worth keeping. `--resume FOLDER` alone restores every option;
one that is typed again must be the same, but for those that no figure hangs on.
"""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from .. import __version__
from .options import CELLS
from .terminal import as_typed, say

FILE = "command.json"
FREE = {
    "threads",
    "track",
    "jobs",
    "cluster",
    "crews",
    "engine",
    "cpus_each",
    "gpus_each",
    "as_json",
    "data_dir",
    "code",
    "out",
    "resume",
}  # no figure hangs on these
_SPELLED = {"as_json": "--json", "with_": "--with", "bytes_": "--bytes", "plan": "PLAN"}


@dataclass(frozen=True)
class Asked:
    """What a person typed: the command, the line, and the options that are not left to their defaults."""

    command: str
    typed: str
    options: Mapping[str, Any]

    def keep(self, folder: Path) -> None:
        """The folder can go on from here. What it began with stays."""
        from ..training import checkpoint

        if not (folder / FILE).exists():
            options = dict(self.options)
            if options.get("data_dir") is not None:  # whoever goes on may stand elsewhere
                options["data_dir"] = Path(options["data_dir"]).absolute()
            told = {"version": __version__, "command": self.command, "typed": self.typed, "options": options}
            mode = 0o600 if "private_seed" in self.options else 0o644
            checkpoint.write_text(folder / FILE, json.dumps(told, indent=1, default=str), mode)


def resumable(command: Callable[..., None], only: frozenset[str] | None = None) -> Callable[..., None]:
    """Give `command`, which has an option --resume, what was `asked`: now, or when the folder was begun.

    `only`: the options that the command wants back from here, where its folder holds the rest in another way.
    """
    own = inspect.signature(command)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(command)
    def typed(context: typer.Context, **values: Any) -> None:
        given = {name: value for name, value in values.items() if _is_typed(context, name)}
        asked = Asked(command.__name__, as_typed(), {n: v for n, v in given.items() if n not in ("out", "resume")})
        if (folder := values["resume"]) is not None:
            asked = restored(folder, asked, values["out"], only)
        command(**{**values, **asked.options}, asked=asked)

    kept = [one for one in own.parameters.values() if one.name != "asked"]
    typed.__signature__ = own.replace(parameters=[*kept, context])  # type: ignore[attr-defined]
    typed.__annotations__ = {one.name: one.annotation for one in [*kept, context]}
    return typed


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def restored(folder: Path, now: Asked, out: Path | None = None, only: frozenset[str] | None = None) -> Asked:
    """The command a folder was begun with, with what may be another of `now`; anything else is refused by name."""
    from ..engines.taken import LOCK, FolderLock
    from ..training.checkpoint import refuse_other_version

    if out is not None:
        raise ValueError(f"--resume goes on in {folder}: leave out --out, or begin anew without --resume")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to go on in")
    if only is not None and not (folder / FILE).exists():
        return now  # begun from Python, where nobody typed anything
    if not (folder / FILE).exists():
        if (folder / LOCK).exists():
            FolderLock(folder).release()  # says so, where another process has only just begun
        raise FileNotFoundError(f"{folder} was not begun by `cutlayer {now.command}`: there is no {FILE} in it")
    try:
        told = json.loads((folder / FILE).read_text())
        begun = Asked(told["command"], told["typed"], dict(told["options"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / FILE} is damaged ({error}): put back a copy of it, or begin anew with another --out"
        ) from error
    refuse_other_version(told.get("version"), folder)
    if begun.command != now.command:
        raise ValueError(f"{folder} was begun by `cutlayer {begun.command}`: resume it with that")
    kept = {name: value for name, value in begun.options.items() if only is None or name in only | FREE}
    others = {name: value for name, value in now.options.items() if only is not None and name not in only}
    _refuse_other_options(folder, kept, {name: value for name, value in now.options.items() if name not in others})
    _refuse_to_import(folder, kept, now.options)
    options = {**kept, **others, **{name: value for name, value in now.options.items() if name in FREE}}
    if isinstance(options.get("data_dir"), str):
        options["data_dir"] = Path(options["data_dir"])
    return Asked(begun.command, begun.typed, options)


def _refuse_other_options(folder: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if name in FREE or begun.get(name) == value:
            continue
        option = spelled(name)
        before = f"with {option} {_words(begun[name])}" if name in begun else f"without {option}"
        raise ValueError(
            f"{folder} was begun {before}, and now it is {_words(value)}: leave {option} out to go on, or begin anew "
            "without --resume"
        )


def _refuse_to_import(folder: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A folder causes no import: whoever goes on types again what names code outside the package."""
    outside = {name: texts for name, texts in _outside(begun).items() if name not in now}
    if outside:
        options = " and ".join(map(spelled, outside))
        named = "; ".join(f"{spelled(name)} {', '.join(texts)}" for name, texts in outside.items())
        raise ValueError(
            f"{folder} was begun with {named}, which names code outside the package, and a folder imports nothing by "
            f"itself: type {options} again beside --resume"
        )


def _outside(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """The options of a command that name code outside the package, as they were typed."""
    from ..core.outside.placeholders import rewritten

    texts = {
        name: value if isinstance(value, list) else [value] for name, value in options.items() if name not in FREE
    }
    return {
        name: list(map(str, many))
        for name, many in texts.items()
        if any(rewritten(one)[1] for one in many if isinstance(one, str))
    }


def _way_on(command: str, folder: Path) -> str:
    """The whole command that goes on in a folder, with what has to be typed again."""
    words = ["cutlayer", command, "--resume", str(folder)]
    if not (folder / FILE).exists():
        return shlex.join(words)
    for name, texts in _outside(json.loads((folder / FILE).read_text())["options"]).items():
        option = [spelled(name)] if name != "plan" else []
        words += [word for text in texts for word in [*option, text]]
    return shlex.join(words)


def spelled(name: str) -> str:
    """An option as it is typed."""
    return _SPELLED.get(name, f"--{name.replace('_', '-')}")


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def for_cells(asked: Asked, kind: str, out: Path | None, resume: Path | None) -> Iterator[Path]:
    """A folder for finished cells, this process's own: a new one, or one with something left to do. Ctrl-C ends the
    command and keeps them."""
    from ..engines.taken import taken

    with taken(out, kind, resume) as folder:
        if resume is not None and not (folder / CELLS).is_dir():  # what is finished is never written over
            raise FileExistsError(f"the {asked.command} in {folder} is finished: begin another without --resume")
        try:
            yield folder
        except KeyboardInterrupt:
            say(_interrupted(asked.command, folder))
            sys.exit(130)


def tried_again(command: str, folder: Path) -> str:
    return f"what is finished is kept, and tried again is what failed by: {_way_on(command, folder)}"


def _interrupted(command: str, folder: Path) -> str:
    if not (folder / FILE).exists():
        return "interrupted before anything was finished: nothing is kept"
    return f"interrupted; what is finished is kept, go on with: {_way_on(command, folder)}"
