"""Work for several processes: each takes cells that nobody has, and leaves them where they are found."""

import multiprocessing
import os
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..data.base import Loaded
from ..training.device import threads_here
from .spec import AuditSpec, Resources
from .store import ResultStore


def spread(
    spec: AuditSpec, loaded: Loaded, resources: Resources, count: int, threads: int, show: Callable[[int], None]
) -> None:
    """Fill the store of `audit(spec, loaded, resources)` with `count` processes of so many threads each."""
    folder = resources.store.folder
    assert folder is not None, "processes meet in a folder"
    # Each process opens the store itself, and what it is doing it shows nobody.
    handed = Resources(resources.device, resources.lpips)
    attacks = len(spec.attacks) + len(spec.optional_attacks)
    guards = len(spec.guards) + len(spec.optional_guards)
    # The open cut comes first: it is the control. What clients reach alone at equal cost hangs on all guards.
    for part, to_claim in (
        (replace(spec, guards=(), optional_guards=(), alone=False), attacks),
        (spec, guards + 2 * spec.alone),
    ):
        store = (folder, spec.identity, resources.store.on_open)
        # A process that finds nothing left to claim would still train the open cut for the floors.
        useful = max(1, min(count, to_claim * len(spec.seeds)))
        share(useful, folder, show, _work, threads, store, part, loaded, handed)


def share(
    count: int, folder: Path, show: Callable[[int], None], work: Callable[..., None], threads: int, *given: Any
) -> None:
    """Have `count` processes do `work(claims, threads, *given)`. What is finished lies in `folder`; `show` is told
    how many there are. `claims` is a folder for `claimer`."""
    try:
        pickle.dumps(given)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"--jobs starts processes, and this plan cannot be handed to them: {error}") from error
    claims = folder.with_name(folder.name + ".claims")
    try:
        shutil.rmtree(claims, ignore_errors=True)
        claims.mkdir(parents=True)
        _run(count, work, (claims, threads, *given), folder, show)
    finally:
        shutil.rmtree(claims, ignore_errors=True)


def claimer(claims: Path) -> Callable[[str], bool]:
    """Says of a name whether it is this process's to do: the first who asks gets it."""

    def claim(name: str) -> bool:
        try:
            os.close(os.open(claims / sha256(name.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return claim


def _run(
    count: int, work: Callable[..., None], given: tuple[Any, ...], folder: Path, show: Callable[[int], None]
) -> None:
    # A forked process would inherit the threads of torch half: start anew.
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_quietly, args=(work, given), daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            show(len(list(folder.glob("*.safetensors"))))
            time.sleep(0.5)
            if any(worker.exitcode for worker in workers):
                break
    finally:
        for worker in workers:
            if worker.exitcode is None and any(other.exitcode for other in workers):
                worker.terminate()
            worker.join()
    if failed := next((worker.exitcode for worker in workers if worker.exitcode), None):
        raise RuntimeError(f"a process ended with {failed}; the same command with --resume goes on")


def _quietly(work: Callable[..., None], given: tuple[Any, ...]) -> None:
    try:
        work(*given)
    except KeyboardInterrupt:
        os._exit(130)


def _work(
    claims: Path, threads: int, store: tuple[Any, ...], spec: AuditSpec, loaded: Loaded, resources: Resources
) -> None:
    import torch

    from .matrix import audit

    torch.set_num_threads(threads)
    audit(spec, loaded, replace(resources, store=ResultStore(*store), claim=claimer(claims)))


def threads_each(threads: int | None, jobs: int) -> int:
    """Each process's part of the cores."""
    return max(1, threads_here(threads) // jobs)
