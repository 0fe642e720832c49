"""Crews and server as actors of Ray. One that dies is started again by Ray, and told where it was."""

import os
import time
from collections.abc import Sequence
from typing import Any

from ..parcel import opened
from .crew import Crew, Order, Said

RESTART = 120.0  # seconds that an actor may take to be there again, on another node perhaps


class CrewActor:
    """A crew in a process of its own. It learns what it plays from what it is asked: it may have begun anew."""

    def __init__(self, threads: int):
        import torch

        torch.set_num_threads(threads)
        self._crew: Crew | None = None
        self._plays = ""

    def begin(self, setup: list[Any], orders: Sequence[Order]) -> Said:
        self._know(setup[0])
        assert self._crew is not None
        return self._crew.begin(orders)

    def go_on(self, replies: Sequence[bytes] | bytes) -> Said:
        assert self._crew is not None, "a crew that began anew is given its orders first"
        return self._crew.go_on(replies)

    def _know(self, setup: Any) -> None:
        if setup.hex() != self._plays:
            import ray

            self._crew, self._plays = Crew(opened(ray.get(setup))), setup.hex()

    def pid(self) -> int:
        return os.getpid()


class ActorCrews:
    """Crews as actors, for whoever carries messages: in the server's actor, or in a process that looks on."""

    def __init__(self, actors: Sequence[Any], setup: list[Any]):
        """`setup`: where it lies in the object store, in a list, since Ray would look it up otherwise."""
        import ray

        self._ray, self.actors, self._setup = ray, list(actors), setup

    def __len__(self) -> int:
        return len(self.actors)

    def begin(self, crew: int, orders: Sequence[Order]) -> Any:
        return self.actors[crew].begin.remote(self._setup, list(orders))

    def go_on(self, crew: int, replies: Sequence[bytes] | bytes) -> Any:
        return self.actors[crew].go_on.remote(replies)

    def first(self, tickets: Sequence[Any]) -> Any:
        return self._ray.wait(list(tickets), num_returns=1)[0][0]

    def said(self, ticket: Any) -> Said | None:
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayActorError:
            return None

    def replaced(self, crew: int) -> None:
        await_restart(self._ray, self.actors[crew])


def await_restart(ray: Any, actor: Any) -> None:
    """Until an actor that was lost is there again: so long every call may fail at once."""
    until, why = time.monotonic() + RESTART, ""
    while time.monotonic() < until:
        try:
            ray.get(actor.pid.remote(), timeout=RESTART)
            return
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[0]
            time.sleep(0.5)
    raise RuntimeError(f"what was lost could not be started again in {RESTART:.0f} s: {why}")


def crew_actors(ray: Any, count: int, cpus: float = 1.0, threads: int = 1) -> list[Any]:
    """Started anew for ever: what they were at is given to them again."""
    made = ray.remote(CrewActor).options(num_cpus=cpus, max_restarts=-1)
    return [made.remote(threads) for _ in range(count)]
