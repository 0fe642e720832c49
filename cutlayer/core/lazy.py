"""Names of a package that load their module when they are first used, so that importing the package stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`, each of whose names lives in a module, or is one itself ("").

    Type checkers do not see through them, so a package names the same homes under `TYPE_CHECKING`.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(sorted(homes))}")
        if not homes[name]:
            return import_module(f".{name}", package)
        return getattr(import_module(f".{homes[name]}", package), name)

    def listed() -> list[str]:
        return sorted({*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return find, listed
