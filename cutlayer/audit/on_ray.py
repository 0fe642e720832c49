"""Jobs on a Ray cluster. What is lost with a worker or a node is computed again; a Python error is not."""

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..engines.cluster import RETRIES, refuse_too_much, side_by_side
from ..engines.parcel import Parcel, opened
from .jobs import Failed, Finished, Job, failed

LOOK = 1.0  # seconds between two looks at what runs where
GROWS = 10.0  # seconds between two looks at how large the cluster is
AHEAD = 2  # jobs that wait at the cluster, for each that is computed: nobody idles, and an autoscaler sees them


@contextmanager
def on_ray(ray: Any, shared: Parcel, threads: int, cpus: float, gpus: float, most: int | None) -> Iterator["OnRay"]:
    """Jobs of so many CPUs and GPUs each, at `most` so many at once."""
    refuse_too_much(ray, cpus, gpus)
    workers = OnRay(ray, shared, threads, cpus, gpus, most)
    try:
        yield workers
    finally:
        workers.close()


class OnRay:
    """What all jobs share lies once in the object store; what stays for other jobs lies there, too."""

    def __init__(self, ray: Any, shared: Parcel, threads: int, cpus: float, gpus: float, most: int | None):
        self._ray, self._threads, self._each, self._most = ray, threads, (cpus, gpus), most
        self._shared = [ray.put(shared)]  # in a list: a job takes it only where it has not read it yet
        here = _on(ray, ray.get_runtime_context().get_node_id())
        self._board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        self._compute = ray.remote(_compute)
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "num_returns": 2, "max_retries": RETRIES}
        self._begun: dict[Any, tuple[Job, Any]] = {}
        self._looked, self._running = 0.0, list[str]()
        self._measured, self._size = 0.0, 0

    @property
    def room(self) -> int:
        if self._most is not None:
            return self._most
        if time.monotonic() - self._measured > GROWS:
            self._measured, self._size = time.monotonic(), side_by_side(self._ray, *self._each)
        return AHEAD * self._size

    def start(self, job: Job, given: Sequence[Any]) -> None:
        # As bytes, and results behind a list: what is made of a plug-in can be read only once its file is there.
        refs = [one for one in given if isinstance(one, self._ray.ObjectRef)]
        values = [_Place(refs.index(one)) if isinstance(one, self._ray.ObjectRef) else one for one in given]
        told, made = self._compute.options(name=job.name[:80], **self._options).remote(
            self._shared, self._board, self._threads, (job.name, job.stays), pickle.dumps((job.work, values)), refs
        )
        self._begun[told] = job, made

    def finished(self, seconds: float) -> list[Finished]:
        done, _ = self._ray.wait(list(self._begun), num_returns=len(self._begun), timeout=0)
        if not done:
            done, _ = self._ray.wait(list(self._begun), num_returns=1, timeout=seconds)
        found = []
        for told in done:
            job, made = self._begun.pop(told)
            value = self._told(told)
            found.append(Finished(job.name, made if job.stays and not isinstance(value, Failed) else value))
        return found

    def _told(self, ref: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            value = self._ray.get(ref)
            return pickle.loads(value) if isinstance(value, bytes) else value
        except exceptions.RayTaskError as error:
            return Failed(f"a worker could not begin it: {str(error).strip().splitlines()[-1]}")
        except exceptions.RayError as error:
            return Failed(f"its worker was lost {RETRIES + 1} times: {type(error).__name__}")

    def running(self) -> list[str]:
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            try:
                self._running = self._ray.get(self._board.running.remote(), timeout=LOOK)
            except self._ray.exceptions.RayError:
                self._running = []
        return self._running

    def close(self) -> None:
        for told in self._begun:
            self._ray.cancel(told, force=True)
        self._begun.clear()
        self._ray.kill(self._board)


class _Board:
    """What is computed where. Who was killed could not say so: a job that begins again replaces what stood there."""

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}

    def began(self, name: str, where: str) -> None:
        self._begun[name] = where

    def ended(self, name: str) -> None:
        self._begun.pop(name, None)

    def running(self) -> list[str]:
        return [f"{name} ({where})" for name, where in self._begun.items()]


_SHARED: dict[str, Any] = {}  # in a process that computes: what all jobs have in common, once it was read


class _Place(NamedTuple):
    """Stands among the arguments of a job for a result that lies in the object store."""

    number: int


def _compute(
    shared: list[Any], board: Any, threads: int, which: tuple[str, bool], asked: bytes, refs: list[Any]
) -> tuple[Any, Any]:
    """(what the driver is told, what stays)."""
    import ray
    import torch

    name, stays = which
    try:
        board.began.remote(name, f"{ray.util.get_node_ip_address()}, process {os.getpid()}")
        torch.set_num_threads(threads)
        (ref,) = shared
        if ref.hex() not in _SHARED:
            _SHARED.clear()
            _SHARED[ref.hex()] = opened(ray.get(ref))
        work, values = pickle.loads(asked)
        given = [pickle.loads(ray.get(refs[one.number])) if isinstance(one, _Place) else one for one in values]
        made = work(_SHARED[ref.hex()], *given)
        return (None, pickle.dumps(made)) if stays else (pickle.dumps(made), None)
    except ray.exceptions.RayError:  # what it waits for was lost on the way here: try again
        raise
    except (Exception, SystemExit) as error:
        return failed(error), None
    finally:
        board.ended.remote(name)


def _on(ray: Any, node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
