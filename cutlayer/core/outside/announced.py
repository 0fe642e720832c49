"""Plug-ins of installed packages: the entry-point group `cutlayer` names classes, or modules with an `__all__`."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from .files import load_module

GROUP = "cutlayer"


class Announced(NamedTuple):
    """One name that an installed package offers."""

    name: str
    origin: str  # package.module:Class
    package: str

    def load(self) -> Any:
        module, _, name = self.origin.partition(":")
        home = load_module(module)
        if not hasattr(home, name):
            raise ValueError(f"{self.package} announces {self.origin}, but {module} has no {name}")
        return getattr(home, name)

    def __str__(self) -> str:
        return f"{self.origin} of the package {self.package}"


def announced(name: str | None = None, imports: bool = True) -> tuple[list[Announced], dict[str, str]]:
    """(what is announced, under `name` if one is given; why some packages could not be asked).

    A module has to be imported before its `__all__` is known: without `imports` only classes are found.
    """
    found, broken = [], {}
    for entry in entries():
        package = entry.dist.name if entry.dist is not None else entry.value.partition(".")[0]
        if ":" in entry.value:
            found.append(Announced(entry.name, entry.value.replace(" ", ""), package))
        elif imports:
            try:
                found += [Announced(one, f"{entry.value}:{one}", package) for one in _all(entry)]
            except ValueError as error:
                broken[package] = str(error)
    return [one for one in dict.fromkeys(found) if name in (None, one.name)], broken


@cache
def entries() -> tuple[EntryPoint, ...]:
    """Read once: nothing is installed while a command runs."""
    return tuple(entry_points(group=GROUP))


def _all(entry: EntryPoint) -> list[str]:
    module = load_module(entry.value)
    if not hasattr(module, "__all__"):
        raise ValueError(f"the entry point {entry.name} is the module {entry.value}, which has no __all__")
    return list(module.__all__)
