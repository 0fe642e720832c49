"""Names of a package that load their module when they are first used, so that importing the package stays light."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`: each name with the module it lives in; an empty one: it is a module itself."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(sorted(homes))}")
        if not homes[name]:
            return import_module(f".{name}", package)
        return getattr(import_module(f".{homes[name]}", package), name)

    return find
