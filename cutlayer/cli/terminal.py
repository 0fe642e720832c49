"""What a person at a terminal sees and does: progress, notes, Ctrl-C, and what the machine may use."""

import json
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def say(text: str) -> None:
    """A line for the reader; standard output is for results."""
    print(text, file=sys.stderr)


@contextmanager
def halt_told(as_json: bool, folder: Path) -> Iterator[None]:
    """A run that a detector stops has a result too: why."""
    from ..core.errors import Halt

    try:
        yield
    except Halt as halt:
        if as_json:
            print(json.dumps({"halted": str(halt), "out": str(folder)}))
        raise


def figures(values: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in values.items())


class Stop:
    """The first Ctrl-C asks to stop after the current step; a second one does not wait."""

    def __enter__(self) -> "Stop":
        self.asked = False
        self.before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def __call__(self) -> bool:
        return self.asked

    def _ask(self, *received: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Bar:
    """A progress bar on standard error; silent where nobody watches."""

    def __enter__(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.progress = Progress(
            BarColumn(30),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("starting", total=1.0)
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, what: str, done: float) -> None:
        self.progress.update(self.task, description=what, completed=done)

    def note(self, row: dict[str, Any]) -> None:
        shown = {name: value for name, value in row.items() if name not in ("epoch", "step", "seconds")}
        self.progress.console.print(
            f"epoch {row['epoch']:3}  {figures(shown)}  ({row['seconds']:.1f} s)", highlight=False
        )


def as_typed() -> str:
    """The command as it was typed, for results that say how they were made."""
    return "cutlayer " + shlex.join(sys.argv[1:])
