"""Jobs in processes of this machine: one that is killed takes no other with it, and its job is tried again."""

import multiprocessing
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..engines.parcel import Parcel, opened
from .jobs import Failed, Finished, Job, failed

RETRIES = 3  # of a job whose process was killed


class Laid(NamedTuple):
    """A result that lies in a file, for other jobs."""

    path: str


@contextmanager
def processes(shared: Parcel, count: int, threads: int) -> Iterator["Processes"]:
    """`count` processes of so many threads each, gone at the end whatever they do then."""
    folder = Path(tempfile.mkdtemp(prefix="cutlayer-"))
    (folder / "shared").write_bytes(pickle.dumps(shared))
    workers = Processes(folder, count, threads)
    try:
        yield workers
    finally:
        workers.close()
        shutil.rmtree(folder, ignore_errors=True)


class Processes:
    """A pool for each process: where several share one, the death of any is the death of all."""

    def __init__(self, folder: Path, count: int, threads: int):
        self.room, self._folder, self._threads = count, folder, threads
        self._free = [_Slot() for _ in range(count)]
        self._begun: dict[Future[bytes], _Begun] = {}

    def start(self, job: Job, given: Sequence[Any]) -> None:
        self._start(_Begun(job, pickle.dumps((job.work, list(given))), self._free.pop(), 0))

    def _start(self, begun: "_Begun") -> None:
        file = self._folder / f"made-{time.monotonic_ns()}" if begun.job.stays else None
        future = begun.slot.submit(self._folder / "shared", self._threads, begun.given, file)
        self._begun[future] = begun

    def finished(self, seconds: float) -> list[Finished]:
        found = []
        for future in wait(self._begun, seconds, FIRST_COMPLETED).done:
            begun = self._begun.pop(future)
            try:
                value = pickle.loads(future.result())
            except BrokenProcessPool:
                again = begun._replace(slot=_Slot(), tries=begun.tries + 1)
                if again.tries <= RETRIES:
                    self._start(again)
                    continue
                value, begun = Failed(f"its process ended {again.tries} times with {begun.slot.end()}"), again
            self._free.append(begun.slot)
            found.append(Finished(begun.job.name, value))
        return found

    def running(self) -> list[str]:
        return [f"{one.job.name} (process {one.slot.pid})" for one in self._begun.values()]

    def close(self) -> None:
        for slot in [*self._free, *(one.slot for one in self._begun.values())]:
            slot.close()


class _Slot:
    """One process, started with its first job."""

    def __init__(self) -> None:
        # A forked process would inherit the threads of torch half: start anew.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_undisturbed)
        self._process: Any = None

    def submit(self, *given: Any) -> "Future[bytes]":
        before = set(multiprocessing.active_children())
        future = self._pool.submit(_compute, *given)
        if self._process is None:
            self._process = next(iter(set(multiprocessing.active_children()) - before), None)
        return future

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def end(self) -> str:
        """How its process ended, in words."""
        until = time.monotonic() + 5
        # The pool's own thread waits for it, too: whoever comes second hears nothing until the first has written it.
        while (code := self._process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.01)
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Begun(NamedTuple):
    job: Job
    given: bytes
    slot: _Slot
    tries: int


def _undisturbed() -> None:
    """Ctrl-C is for whoever started this process, and will end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_SHARED: list[Any] = []  # in a process that computes: what all jobs have in common, once it was read


def _compute(shared: Path, threads: int, given: bytes, file: Path | None) -> bytes:
    try:
        if not _SHARED:
            import torch

            torch.set_num_threads(threads)
            _SHARED.append(opened(pickle.loads(shared.read_bytes())))
        work, arguments = pickle.loads(given)
        made = work(_SHARED[0], *map(_taken, arguments))
        if file is None:
            return pickle.dumps(made)
        file.write_bytes(pickle.dumps(made))
        return pickle.dumps(Laid(str(file)))
    except (Exception, SystemExit) as error:
        return pickle.dumps(failed(error))


def _taken(value: Any) -> Any:
    return pickle.loads(Path(value.path).read_bytes()) if isinstance(value, Laid) else value
