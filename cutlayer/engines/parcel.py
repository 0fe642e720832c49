"""What is handed to another process, perhaps on another machine: one pickle, and the source files it is made of.

Files that a person has named are found by other processes of this machine by their path. Another machine does not
have them, so they travel along, with what they import from beside them.
"""

import json
import os
import pickle
import sys
import tempfile
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ..core.outside.files import NAMED, NamedFile, named

_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


class Shipped(NamedTuple):
    """A file that was named, with its text, and the texts of what it imported from beside it."""

    file: NamedFile
    text: bytes
    beside: dict[str, bytes]


class Parcel(NamedTuple):
    """A pickle, and what it takes to open it."""

    data: bytes
    files: dict[str, Shipped]  # by the name of the module
    places: list[str]  # where modules are looked for: another process of this machine finds the same ones


def parcel(thing: Any, what: str) -> Parcel:
    """`thing` for other processes; what cannot be handed over is named by its field, as `what` calls it."""
    try:
        return Parcel(pickle.dumps(thing), {name: _shipped(file) for name, file in named().items()}, list(sys.path))
    except _UNPICKLABLE as error:
        where, why = _why_not(thing, what, error)
        raise ValueError(
            f"{where} cannot be handed to other processes ({why}): write it as a class or function of a file, "
            "outside of functions"
        ) from error


def opened(given: Parcel) -> Any:
    """What was handed over. Files that are not here, or are others here, are laid down first."""
    sys.path += [place for place in given.places if place not in sys.path and Path(place).exists()]
    here = named()
    for name, (file, text, beside) in given.files.items():
        if name in here and here[name].digest == file.digest and _is_here(here[name]):
            continue
        here[name] = file if _is_here(file) else _laid_down(file, text, beside)
    os.environ[NAMED] = json.dumps(here)
    return pickle.loads(given.data)


def _is_here(file: NamedFile) -> bool:
    path = Path(file.path)
    return path.is_file() and sha256(path.read_bytes()).hexdigest() == file.digest


def _laid_down(file: NamedFile, text: bytes, beside: dict[str, bytes]) -> NamedFile:
    folder = Path(tempfile.mkdtemp(prefix="cutlayer-"))  # nobody else can have put anything there
    for name, content in {Path(file.path).name: text, **beside}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return file._replace(path=str(folder / Path(file.path).name))


def _shipped(file: NamedFile) -> Shipped:
    path = Path(file.path)
    own = {Path(found) for one in list(sys.modules.values()) if (found := getattr(one, "__file__", None))}
    beside = {
        str(one.relative_to(path.parent)): one.read_bytes()
        for one in own
        if one != path and one.suffix == ".py" and one.is_relative_to(path.parent) and one.is_file()
    }
    return Shipped(file, path.read_bytes(), beside)


def _why_not(thing: Any, where: str, error: BaseException) -> tuple[str, str]:
    """The innermost field that cannot be pickled, and why."""
    parts: dict[str, Any] = {}
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {f"{where}.{one.name}": getattr(thing, one.name) for one in fields(thing)}
    elif isinstance(thing, tuple | list):
        names = getattr(thing, "_fields", range(len(thing)))
        parts = {
            f"{where}.{name}" if isinstance(name, str) else f"{where}[{name}]": one
            for name, one in zip(names, thing, strict=True)
        }
    elif isinstance(thing, dict):
        parts = {f"{where}[{name!r}]": one for name, one in thing.items()}
    elif not isinstance(thing, type) and isinstance(thing.__getstate__(), dict):
        parts = {f"{where}.{name}": one for name, one in thing.__getstate__().items()}
    for name, one in parts.items():
        try:
            pickle.dumps(one)
        except _UNPICKLABLE as inner:
            return _why_not(one, name, inner)
    return where, str(error)
