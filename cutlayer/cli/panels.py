"""In which order `cutlayer --help` shows the commands, and under which headings."""

import typer
from typer.models import CommandInfo, TyperInfo

PANELS = {
    "To begin with": ("demo", "new", "list", "layers", "check", "data"),
    "Train and serve": ("train", "compare", "certs", "serve", "join", "status", "predict", "generate"),
    "Guards against attacks": ("audit", "sweep", "tune", "attack", "reproduce"),
    "What it costs": ("memory", "edge", "costs", "bench"),
}
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = list(_PANEL)


def in_panels(app: typer.Typer) -> None:
    """Each command under its heading; one that is in none is a fault of whoever added it."""
    every: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for one in every:
        one.rich_help_panel = _PANEL[_name(one)]
    app.registered_commands.sort(key=lambda one: _ORDER.index(_name(one)))


def _name(one: CommandInfo | TyperInfo) -> str:
    callback = one.callback
    return one.name or (callback.__name__.replace("_", "-") if callback is not None else "")
