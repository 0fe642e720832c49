"""What a person at a terminal sees and does: progress, notes, Ctrl-C, and what the machine may use."""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..audit.jobs import Shown
    from ..audit.rows import Event

ENOUGH_SECONDS, ENOUGH_SHARE = 2.0, 0.1  # before a first part tells how long the whole takes: either will do
QUIET_SECONDS = 30.0  # without a line, where there is no bar
MOST_SHOWN = 8  # of the jobs that run elsewhere


def say(text: str) -> None:
    """A line for the reader; standard output is for results."""
    print(text, file=sys.stderr)


def warn(text: str) -> None:
    """A line that nobody should miss: red on a terminal."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    say(f"\x1b[31m{text}\x1b[0m" if coloured else text)


def end_if_not_kept(found: Iterable[Mapping[str, Any]]) -> None:
    """A leak budget that was not kept is said in red, and the command does not end as if all were well."""
    from ..core.errors import BUDGET_NOT_KEPT
    from ..detectors import why_not_kept

    said = [line for told in found if (line := why_not_kept(told)) is not None]
    for line in dict.fromkeys(said):
        warn(line)
    if said:
        sys.exit(BUDGET_NOT_KEPT)


def end_if_failed(failed: Collection[str], result: str, way_out: str) -> None:
    """A table that is not whole is there all the same, and the command does not end as if all were well."""
    from ..core.errors import CELLS_FAILED

    if failed:
        many = f"{len(failed)} cells of this {result}" if len(failed) > 1 else f"a cell of this {result}"
        warn(f"{many} failed, which is said in {'their' if len(failed) > 1 else 'its'} place; {way_out}")
        sys.exit(CELLS_FAILED)


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


class OrderlyStop:
    """SIGINT and SIGTERM ask a deployed party to end; a second one does not wait. Before it runs, one is enough."""

    def __init__(self, ask: Callable[[], None] | None = None):
        self.ask, self._asked = ask, False

    def __enter__(self) -> "OrderlyStop":
        self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _hear(self, *received: object) -> None:
        from ..core.errors import Interrupted

        if self._asked:
            os._exit(Interrupted.exit_code)  # the second time nothing is waited for; snapshots are whole on disk
        self._asked = True
        if self.ask is None:
            raise Interrupted("stopped before it took part; the same command goes on")
        say("stopping when this is answered; again: at once")
        # Not here: whoever is interrupted may hold the lock that is needed to tell it.
        threading.Thread(target=self.ask, daemon=True).start()


def about(seconds: float) -> str:
    """A duration, as roughly as anybody needs it."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * 60:
        return f"{round(seconds / 60)} min"
    return f"{int(seconds / 3600)} h {round(seconds % 3600 / 60)} min"


class Bar:
    """A progress bar on standard error; where nobody watches, a line now and then.

    `estimates`: what is shown goes evenly, as steps do, so that its first part tells how long the whole will take.
    """

    def __init__(self, estimates: bool = False):
        self.estimates = estimates
        self._first: tuple[float, float] | None = None  # when something was first shown, and how much was done
        self._last = time.monotonic()

    def __enter__(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.watched = console.is_terminal
        self.progress = Progress(
            BarColumn(30),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not self.watched,
        )
        self.task = self.progress.add_task("starting", total=1.0)
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, what: str, done: float) -> None:
        self.progress.update(self.task, description=what, completed=done)
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
            return
        since, share = now - self._first[0], done - self._first[1]
        left = since / share * (1 - done) if self.estimates and share > 0 else None
        if self.estimates and left is not None and (since > ENOUGH_SECONDS or share > ENOUGH_SHARE):
            self.estimates = False
            self.line(f"about {about(left)} to go here, estimated from the first {share:.0%}")
        elif not self.watched and now - self._last > QUIET_SECONDS:
            self.line(f"{done:4.0%}  {what}" + (f", about {about(left)} left" if left is not None else ""))

    def line(self, text: str) -> None:
        """A line that stays, above the bar where there is one."""
        self._last = time.monotonic()
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def note(self, row: dict[str, Any]) -> None:
        shown = {name: value for name, value in row.items() if name not in ("epoch", "step", "seconds")}
        self.line(f"epoch {row['epoch']:3}  {figures(shown)}  ({row['seconds']:.1f} s)")


class CellLines:
    """What a table is doing: on a terminal a bar, elsewhere a line a cell with its time and the time left."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self._counted: list[tuple[float, int]] = []  # when so many were finished

    def __call__(self, event: "Event") -> None:
        self.bar.show(event.what, event.done)
        if (first := event.estimate) is not None:
            count = " and ".join(f"{many} {kind}s" for kind, many in first.to_make.items() if many)
            took = f"a {first.kind} takes about {about(first.seconds)} here, estimated from its first steps"
            self.bar.line(f"{took}; {count} to make")
        if (cell := event.finished) is not None and not self.bar.watched:
            left = "time left unknown yet" if cell.left is None else f"about {about(cell.left)} left"
            left = "" if cell.number == cell.of else f"; {left}"
            self.bar.line(f"{cell.number} of {cell.of}  {event.what}  ({cell.seconds:.1f} s{left})")

    def counted(self, told: "Shown") -> None:
        """The same where others do the work: how much is finished, and what runs where."""
        finished, of, running = told
        self.bar.show(
            f"{finished} of {of} jobs" + "".join(f"\n  {one}" for one in running[:MOST_SHOWN]), finished / of
        )
        if self._counted and finished == self._counted[-1][1]:
            return
        self._counted = [*self._counted[:1], (time.monotonic(), finished)]
        (began, before), (now, _) = self._counted[0], self._counted[-1]
        left = "time left unknown yet"
        if finished > before:
            left = f"about {about((now - began) / (finished - before) * (of - finished))} left"
        if not self.bar.watched:
            here = f"; now: {', '.join(running[:MOST_SHOWN])}" if running else ""
            self.bar.line(f"{finished} of {of} jobs ({left}){here}")


def as_typed() -> str:
    """The command as it was typed, for results that say how they were made."""
    return " ".join(["cutlayer", *map(_quoted, sys.argv[1:])])


def _quoted(word: str) -> str:
    """As a person would: specs with quotes in them stand in double ones, if the shell then leaves them alone."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)
