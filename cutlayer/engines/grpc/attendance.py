"""Which clients are there: a run waits for those that may come back in time, and goes on without the others."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...training.plan.schedule import Turn
from . import admission as admission
from .admission import Admission
from .connection import ClientConnection, Stopped

log = logging.getLogger("cutlayer.serve")


class Attendance:
    """Who is away, whose turns were skipped, and for whom the server waits now."""

    def __init__(self, room: Admission, forget: Callable[[int], None], stopping: threading.Event):
        """`forget`: drop what the server holds for a client."""
        self.connections, self.limits, self._wakeup = room.connections, room.limits, room.wakeup
        self._forget, self.stopping, self._known = forget, stopping, room.known
        self.absent: set[int] = set()
        self.skipped: list[dict[str, Any]] = []  # turns of clients that stayed away
        self.left_out: list[dict[str, Any]] = []  # clients that may not come back, and why
        self.parting = False  # the run is over: whoever is gone now misses only the news
        self.exact = True  # no turn was skipped and nobody lost its state
        self._waited_for = Counter[int]()  # by client: several are waited for where they are asked side by side
        self._counting = threading.Lock()

    @contextmanager
    def waiting(self, connections: Sequence[ClientConnection]) -> Iterator[None]:
        """Nothing goes on before these have answered, or come."""
        with self._counting:
            self._waited_for.update(one.number for one in connections)
        try:
            yield
        finally:
            with self._counting:
                self._waited_for.subtract(one.number for one in connections)

    def waited_for(self, connection: ClientConnection) -> bool:
        return self._waited_for[connection.number] > 0

    @property
    def waiting_for(self) -> str:
        """One of those, who is away before who is there; empty: nobody is waited for."""
        there = [one for one in self.connections if self.waited_for(one)]
        return next((one.name for one in sorted(there, key=lambda one: one.connected)), "")

    def present(self) -> list[ClientConnection]:
        """Those the run goes on with, connected just now or not."""
        return [one for one in self.connections if one.number not in self.absent]

    def own_data(self) -> bool:
        """Whether clients brought data of their own, so that none can speak for the others."""
        return any(one.get("own_data") for one in self._known)

    def anybody(self) -> bool:
        return any(one.connected for one in self.connections)

    def back(self, connection: ClientConnection) -> None:
        """A client that had stayed away takes part again."""
        self.absent.discard(connection.number)
        log.info("back", extra={"facts": {"client": connection.name}})

    def restore(self, skipped: list[dict[str, Any]], exact: bool) -> None:
        """As it was when a snapshot was written."""
        self.skipped, self.exact = list(skipped), exact

    def lose(self, connection: ClientConnection) -> None:
        """The run goes on without this client."""
        connection.drop()
        self._forget(connection.number)
        self.absent.add(connection.number)
        self.exact = False
        self.note_banned(connection)

    def wait_in_vain(self, connection: ClientConnection) -> None:
        """It has cost the others a deadline. To be there and silent is no accident that may happen every round."""
        if connection.connected:
            connection.strikes += 1
        else:
            connection.absences += 1
        facts = {"client": connection.name, "there": connection.connected, "deadline": self.limits.deadline}
        log.warning("waited in vain", extra={"facts": facts})
        self.lose(connection)

    def note_banned(self, connection: ClientConnection) -> None:
        """Say once, in log and result, who is left out for good."""
        why = admission.banned(connection)
        if why and all(one["client"] != connection.name for one in self.left_out):
            self.left_out.append({"client": connection.name, "why": why})
            log.warning("left out", extra={"facts": self.left_out[-1]})

    def skip(self, turn: Turn, epoch: int) -> None:
        name = self.connections[turn.client].name
        self.skipped.append({"client": name, "epoch": epoch, "batches": turn.last - turn.first})
        self.exact = False
        log.warning("skipped", extra={"facts": {"client": name, "epoch": epoch}})
        self.wait_for_anybody()  # with nobody there, skipping would end the plan with nothing learnt

    def wait_for_anybody(self) -> None:
        self._wakeup.wait_for(lambda: self.stopping.is_set() or self.anybody())
        if not self.anybody():
            raise Stopped

    def wait_for_all(self) -> None:
        """Until every client is there; the run goes on without those that stay away past the deadline."""
        began = time.monotonic()
        while missing := self._missing():
            if self.stopping.is_set():
                raise Stopped
            if banned := [one for one in missing if admission.banned(one)]:
                for connection in banned:
                    self.lose(connection)
            elif not self.anybody():
                with self.waiting(missing):
                    self.wait_for_anybody()
                began = time.monotonic()  # nobody is late while nobody is there: it is our network that is away
            elif time.monotonic() - began > self.limits.deadline:
                for connection in missing:
                    self.wait_in_vain(connection)
            else:
                left = began + self.limits.deadline - time.monotonic()
                with self.waiting(missing):
                    self._wakeup.wait_for(lambda: self.stopping.is_set() or self._missing() != missing, left)

    def wait_for(self, connection: ClientConnection, until: float) -> bool:
        """Whether this client is there by then."""
        left = max(0.0, until - time.monotonic())
        with self.waiting([connection]):
            self._wakeup.wait_for(lambda: self.stopping.is_set() or connection.connected, left)
        return connection.connected

    def _missing(self) -> list[ClientConnection]:
        return [one for one in self.present() if not one.connected]
