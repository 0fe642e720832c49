"""A plan on a Ray cluster, from its first step to its last; what is lost on the way is found again.

The driver holds the last snapshot. When the server's actor dies, it starts from that one, and so does everybody: a
client has nothing that a snapshot does not have. When a crew dies, its turn is played again (`carrier.py`).
"""

import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...training import loop
from ...training.build import build_server
from ...training.client import batches_of
from ...training.coordinator import Coordinator
from ...training.progress import StepEvent
from .. import cluster
from ..local.run import LocalRun
from ..parcel import opened, parcel
from .actors import ActorCrews, await_restart, crew_actors
from .carrier import LostCrew, RayCarrier
from .crew import Setup

TELL = 2.0  # seconds between two words of the server about how far it is
KEEP = 30.0  # seconds between two snapshots, beside those of every epoch
MOST_LOST = 10  # times that the server is lost between two snapshots


@dataclass(frozen=True)
class Fleet:
    """Where a fleet is: `crews` processes that play its clients, and a server, which may have GPUs of its own."""

    cluster: str = cluster.LOCAL
    crews: int | None = None  # None: a CPU each, but for the server's
    threads: int = 1  # of each crew, and of the server
    gpus: float | None = None  # of the server; None: one, with --device cuda

    def __post_init__(self) -> None:
        if self.crews is not None and self.crews < 1:
            raise ValueError(f"--crews is at least 1; got {self.crews}")


def fleet_of(run: LocalRun, device: torch.device | str = "cpu") -> tuple[Coordinator, Setup]:
    """The server's side of a run that has not begun, and what its crews are built from."""
    shares = [client.own.share for client in run.clients if client.own.share is not None]
    counts = [len(share) for share in shares]
    assert len(counts) == run.plan.clients
    coordinator = _coordinator(run.plan, run.task, counts, device)
    return coordinator, Setup(run.plan, run.task, run.parts, torch.cat(shares), counts, coordinator.alike)


def _coordinator(plan: Any, task: Any, counts: list[int], device: torch.device | str) -> Coordinator:
    server = build_server(plan.public(), task, device)
    return Coordinator(plan, server, [batches_of(plan, count) for count in counts])


Snapshot = tuple[Mapping[str, Tensor], Mapping[str, Any]]  # (tensors, facts)


class Told(NamedTuple):
    """Where the server stands."""

    epoch: int
    step: int
    steps: int
    finished: bool
    snapshot: Snapshot | None  # where one is due
    error: bytes | None = None  # what ended the training, pickled


class ServerActor:
    """The server of a fleet: the loop, the coordinator and the body, and the way to its crews."""

    def __init__(self, device: str, threads: int):
        torch.set_num_threads(threads)
        torch.zeros(30 << 18)  # as in one process: see training/device.py
        self._device, self._kept = device, 0.0

    def restore(self, setup: list[Any], crews: list[Any], snapshot: Snapshot | None) -> None:
        """Begin, or begin anew at a snapshot. An actor that Ray has started again knows nothing else."""
        import ray

        given: Setup = opened(ray.get(setup[0]))
        self._coordinator = _coordinator(given.plan, given.task, list(given.counts), self._device)
        self._carrier = RayCarrier(self._coordinator, ActorCrews(crews, setup), self._device)
        if snapshot is not None:
            self._coordinator.restore(*snapshot)
            self._carrier.rewind(self._coordinator.progress.step, snapshot[0])
        self._kept = time.monotonic()

    def go_on(self, keeps: bool) -> Told:
        """For a moment, or to the end of an epoch; `keeps`: with a snapshot, whatever the time."""
        began, pauses = time.monotonic(), list[bool]()

        def stop() -> bool:
            return bool(pauses) or time.monotonic() - began > TELL

        try:
            finished = loop.train(self._coordinator, self._carrier, on_epoch=lambda: pauses.append(True), stop=stop)
        except LostCrew:
            raise
        except Exception as error:
            return self._told(False, keeps=True, error=error)
        due = keeps or finished or bool(pauses) or time.monotonic() - self._kept > KEEP
        return self._told(finished, due)

    def _told(self, finished: bool, keeps: bool, error: Exception | None = None) -> Told:
        progress, found = self._coordinator.progress, None
        if keeps:
            tensors, facts = self._coordinator.snapshot(self._carrier.keep(progress.step))
            found = {name: t.cpu() for name, t in tensors.items()}, facts
            self._kept = time.monotonic()
        steps = self._coordinator.timetable.steps
        return Told(
            progress.epoch, progress.step, steps, finished, found, None if error is None else pickle.dumps(error)
        )

    def pid(self) -> int:
        return os.getpid()


def train(
    run: LocalRun,
    fleet: Fleet,
    device: str = "cpu",
    *,
    on_step: Callable[[StepEvent], None] = lambda event: None,
    on_epoch: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[Any, list[Any]], None] = lambda server, crews: None,
) -> bool:
    """As `loop.train` of `run`, which follows snapshot by snapshot. True: the plan is finished."""
    _, setup = fleet_of(run)
    with cluster.connected(fleet.cluster, fleet.crews and fleet.crews + 1) as ray:
        gpus = fleet.gpus if fleet.gpus is not None else float(device == "cuda")
        cluster.refuse_too_much(ray, 1.0, gpus)
        room = int(ray.cluster_resources().get("CPU", 1))
        count = fleet.crews or max(1, room - 1)
        if count > room:
            raise ValueError(f"--crews {count}: the cluster has {room} CPUs, and a crew takes one")
        lies = [ray.put(parcel(setup, "plan"))]
        crews = crew_actors(ray, count, threads=fleet.threads)
        made = ray.remote(ServerActor).options(num_cpus=0, num_gpus=gpus, max_restarts=-1)
        server = made.remote(device, fleet.threads)
        on_start(server, crews)
        try:
            return _followed(ray, partial(server.restore.remote, lies, crews), server, run, on_step, on_epoch, stop)
        finally:
            for actor in [server, *crews]:
                ray.kill(actor)


def _followed(
    ray: Any, restore: Callable[..., Any], server: Any, run: LocalRun, on_step: Callable[[StepEvent], None],
    on_epoch: Callable[[], None], stop: Callable[[], bool],
) -> bool:  # fmt: skip
    # Of a run that has not begun there is nothing to say; a snapshot would build the networks of all its clients.
    last: Snapshot | None = run.snapshot() if run.progress.step else None
    lost, epoch, restored = 0, run.progress.epoch, False
    while True:
        stopping = stop()
        try:
            if not restored:
                ray.get(restore(last))
                restored = True
            told: Told = ray.get(server.go_on.remote(stopping))
        except (ray.exceptions.RayActorError, LostCrew) as error:
            lost += 1
            if lost > MOST_LOST:
                raise RuntimeError(f"the server was lost {lost} times without getting any further") from error
            await_restart(ray, server)
            restored = False
            continue
        on_step(StepEvent(told.epoch, told.step, told.steps, {}))
        if told.snapshot is not None:
            last, lost = told.snapshot, 0
            run.restore(*told.snapshot)
        if told.error is not None:
            raise pickle.loads(told.error)
        if told.epoch > epoch:
            epoch = told.epoch
            on_epoch()
        if told.finished or stopping:
            return told.finished
