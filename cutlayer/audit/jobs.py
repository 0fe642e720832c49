"""Jobs and what each waits for: given to workers as soon as it can begin, in the order in which they were listed.

A job is a function and its arguments; one that needs what another made names it (`Result`). A Python error is that
job's own: it leaves a `Failed`, whatever waits for it fails with it, and the others go on. Who computes is not known
here (`Workers`): processes of this machine (`processes.py`) or a Ray cluster (`on_ray.py`).
"""

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ..core.errors import DiskFull
from ..core.outside.files import where

log = logging.getLogger("cutlayer.audit")

FAILED = "it failed: "  # before the reason, wherever that is told
Made = TypeVar("Made")


class Result(NamedTuple):
    """Stands among the arguments of a job for what another one has made."""

    of: str


class Job(NamedTuple):
    """`work(shared, *given)`, where `shared` is what all jobs have in common. `work` is a function of a
    module: other processes find it by its name."""

    name: str
    work: Callable[..., Any]
    given: tuple[Any, ...] = ()
    stays: bool = False  # what it makes is for other jobs alone, and need not come here

    @property
    def after(self) -> list[str]:
        return [one.of for one in self.given if isinstance(one, Result)]


class Failed(NamedTuple):
    """What a job has left instead of a result."""

    why: str
    error: Exception | None = None  # None: whoever computed it was lost, again and again

    def __str__(self) -> str:
        """As it stands in a table, in place of a figure."""
        return f"{FAILED}{self.why}"


def failed(error: Exception | SystemExit) -> Failed:
    """A Python error as it can travel, and be told."""
    if isinstance(error, SystemExit):  # of a plug-in, which would end whoever raises it again
        error = ValueError(where(error))
    log.debug("a cell failed", exc_info=error)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    words = " ".join(str(error).split())  # a table and a list have one line for it
    return Failed(f"{type(error).__name__}: {words}", error)


def made_or_failed(make: Callable[[], Made], *through: type[Exception]) -> Made | Failed:
    """What it makes, or how it failed: the others go on. A full disk, with which they would fail, too, and errors of
    the kinds `through` are the caller's."""
    callers: tuple[type[Exception], ...] = (DiskFull, *through)
    try:
        return make()
    except callers:
        raise
    except (Exception, SystemExit) as error:
        return failed(error)


class Finished(NamedTuple):
    """`value` is what it made, or what stands for that where it stays with the workers."""

    name: str
    value: Any


class Workers(Protocol):
    """Whoever computes jobs. One that is lost is replaced, and its job given to another."""

    @property
    def room(self) -> int:
        """How many jobs are worth handing over at once."""

    def start(self, job: Job, given: Sequence[Any]) -> None:
        """Have it computed; `given` are its arguments, with values for results."""

    def finished(self, seconds: float) -> list[Finished]:
        """Those that ended since it was last asked; waits so long for the first."""

    def running(self) -> list[str]:
        """What is computed where, in words."""


class Shown(NamedTuple):
    """How far all have come."""

    finished: int
    of: int
    running: list[str]


POLL = 0.5  # seconds between two looks at what runs where


def run(jobs: Sequence[Job], workers: Workers, show: Callable[[Shown], None]) -> Iterator[tuple[Job, Any]]:
    """Every job with what it made, or how it `Failed`, as they end. Nothing is kept that no job waits for."""
    waiting = {job.name: job for job in jobs}
    assert len(waiting) == len(jobs), "every job has a name of its own"
    wanted = _wanted(jobs)
    begun: dict[str, Job] = {}
    made: dict[str, Any] = {}
    ended = 0
    while waiting or begun:
        while (found := _lost(waiting, made)) is not None:
            job, why = found
            del waiting[job.name]
            ended += 1
            yield from _end(job, why, made, wanted)
        for job in _ready(waiting, made, workers.room - len(begun)):
            begun[job.name] = waiting.pop(job.name)
            workers.start(job, [made[one.of] if isinstance(one, Result) else one for one in job.given])
        assert begun or not waiting, f"these wait for what nobody makes: {sorted(waiting)}"
        for name, value in workers.finished(POLL) if begun else ():
            ended += 1
            yield from _end(begun.pop(name), value, made, wanted)
        show(Shown(ended, len(jobs), workers.running()))


def _wanted(jobs: Sequence[Job]) -> dict[str, int]:
    """How many wait for what each makes."""
    found: dict[str, int] = {}
    for job in jobs:
        for name in job.after:
            found[name] = found.get(name, 0) + 1
    return found


def _lost(waiting: dict[str, Job], made: dict[str, Any]) -> tuple[Job, Failed] | None:
    """One that waits for what failed, and that."""
    failed = {name: why for name, why in made.items() if isinstance(why, Failed)}
    if failed:
        for job in waiting.values():
            for name in job.after:
                if name in failed:
                    return job, failed[name]
    return None


def _ready(waiting: dict[str, Job], made: dict[str, Any], room: int) -> list[Job]:
    found: list[Job] = []
    for job in waiting.values():
        if len(found) >= room:
            break
        if all(one in made for one in job.after):
            found.append(job)
    return found


def _end(job: Job, value: Any, made: dict[str, Any], wanted: dict[str, int]) -> Iterator[tuple[Job, Any]]:
    if wanted.get(job.name):
        made[job.name] = value
    for name in job.after:
        wanted[name] -= 1
        if not wanted[name]:
            made.pop(name, None)
    yield job, value
