"""Rows decoded as they are asked for, in other processes and ahead of time; those that fit are kept."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .room import decoders, image_memory
from .rows import Rows, Store, as_tensor

AHEAD = 2  # batches that are made while one is learnt from
WAITING = 1 << 29  # bytes that may be made and not yet asked for
LEAST = 4  # rows that are worth a message to another process


def in_memory_or_not(*stores: Store) -> list[Tensor]:
    """The rows of stores that belong together: read at once if they all fit into the memory for images, else when
    they are asked for, with the memory shared out among them."""
    room, whole = image_memory(), sum(len(store) * store.row_bytes for store in stores)
    if whole <= room:
        return [store.read(torch.arange(len(store))) for store in stores]
    workers = decoders()
    shares = [room * len(store) * store.row_bytes // whole for store in stores]
    return [as_tensor(Rows(store.streamed(share, workers))) for store, share in zip(stores, shares, strict=True)]


class Streamed(Store):
    """A store whose rows cost something to make: `memory` bytes of them are kept, `workers` processes make them.

    The first rows that come are kept, and none is given up for another: an epoch asks for every row once, so the one
    that was asked for last is the one that is needed last.
    """

    def __init__(self, store: Store, memory: int, workers: int):
        self.store, self.memory, self.workers = store, memory, workers
        self.shape, self.dtype = store.shape, store.dtype
        self._begin()

    def _begin(self) -> None:
        most = min(len(self.store), self.memory // max(1, self.row_bytes))
        self._kept = torch.empty(most, *self.shape, dtype=self.dtype)  # the system gives pages when they are written
        self._place = torch.full((len(self.store),), -1, dtype=torch.int32)  # of a row among the kept ones
        self._count = 0
        self._coming: dict[bytes, list[Future[np.ndarray]]] = {}
        self._one_at_a_time = threading.RLock()  # clients of one process may be threads of it

    def __len__(self) -> int:
        return len(self.store)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "memory": self.memory, "workers": self.workers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        return self.store.task(which)

    def read(self, which: Tensor) -> Tensor:
        with self._one_at_a_time:
            return self._read(which)

    def _read(self, which: Tensor) -> Tensor:
        found = torch.empty(len(which), *self.shape, dtype=self.dtype)
        place = self._place[which]
        there = place >= 0
        found[there] = self._kept[place[there].long()]
        lacking = which[~there]
        if len(lacking):
            made = self._made(lacking)
            found[~there] = made
            self._keep(lacking, made)
        return found

    def soon(self, batches: Iterable[Tensor]) -> None:
        with self._one_at_a_time:
            for which in batches if self.workers else ():
                lacking = which[self._place[which] < 0]
                if len(lacking) and _name(lacking) not in self._coming:
                    if self._waiting() + len(lacking) * self.row_bytes > WAITING and self._coming:
                        return
                    self._coming[_name(lacking)] = self._asked(lacking)

    def _waiting(self) -> int:
        return sum(len(name) // 8 for name in self._coming) * self.row_bytes

    def _made(self, which: Tensor) -> Tensor:
        """Rows that are not kept: those being made already, or made now."""
        parts = self._coming.pop(_name(which), None)
        if parts is None:
            # What was foretold and not asked for: the run took another turn.
            while self._coming and self._waiting() > WAITING // 2:
                for part in self._coming.pop(next(iter(self._coming))):
                    part.cancel()
            parts = self._asked(which) if self.workers and len(which) >= LEAST else []
        try:
            if parts:
                return torch.from_numpy(np.concatenate([part.result() for part in parts]))
        except BrokenProcessPool:
            self._alone()
        return self.store.read(which)

    def _asked(self, which: Tensor) -> "list[Future[np.ndarray]]":
        pieces = which.tensor_split(max(1, min(self.workers, len(which) // LEAST)))
        try:
            workers = pool(self.workers, os.getpid())
            return [workers.submit(_array, self.store.task(piece)) for piece in pieces]
        except (BrokenProcessPool, RuntimeError):
            self._alone()
            return []

    def _alone(self) -> None:
        warnings.warn(
            "the processes that decode images have ended, so this one decodes: if a script of your own starts the "
            "run, put that under `if __name__ == '__main__':`; else give them more memory, or CUTLAYER_DECODERS=0",
            stacklevel=2,
        )
        self.workers, self._coming = 0, {}

    def _keep(self, which: Tensor, made: Tensor) -> None:
        room = len(self._kept) - self._count
        if room <= 0:
            return
        # A row that is asked for twice at once is kept once.
        new = torch.from_numpy(np.unique(which.numpy(), return_index=True)[1])[:room]
        places = torch.arange(self._count, self._count + len(new))
        self._kept[places] = made[new]
        self._place[which[new]] = places.int()
        self._count += len(new)


def _name(which: Tensor) -> bytes:
    return which.numpy().tobytes()


def _array(task: Callable[[], Tensor]) -> np.ndarray:
    return task().numpy()


@lru_cache(maxsize=1)
def pool(workers: int, process: int) -> ProcessPoolExecutor:
    """One for all sets of this process. Its workers come from a server that was started clean: a copy of this
    process would have the threads of gRPC and of CUDA half."""
    clean = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if clean else "spawn")
    if clean:
        context.set_forkserver_preload(["cutlayer.data.image_files"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the run stops them
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """A run that was killed could not tell its decoders: they would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def soon_of(batches: Sequence[Tensor], place: int) -> Sequence[Tensor]:
    """The batch at `place` and those that are worth making ahead."""
    return batches[place : place + 1 + AHEAD]
