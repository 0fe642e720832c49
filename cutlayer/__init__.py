"""Cutlayer: split learning that trains, guards, attacks and audits the cut."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Loaded when first used, so that `import cutlayer` and `cutlayer --help` stay light.
_HOMES = {
    "Batch": "core.batch",
    "Bypass": "core.split",
    "Plan": "training.plan.plan",
    "Remote": "core.remote",
    "Server": "core.server",
    "UShaped": "core.split",
    "Vanilla": "core.split",
    "cut": "nets",
    "spec": "core.spec",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"cutlayer has no {name!r}; it has {', '.join(sorted(_HOMES))}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
