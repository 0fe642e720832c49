"""The server of a deployment: a plan trained over connections to clients elsewhere, and back after any crash."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...core.message import Kind, Watcher
from ...training import loop
from ...training.build import build_server
from ...training.coordinator import Coordinator
from ...training.progress import StepEvent
from ...training.suspicion import counts_tensor
from .admission import Admission
from .attendance import Attendance
from .carrier import GrpcCarrier, serve_predictions
from .connection import Absent, ClientConnection, Lost, Stopped
from .recovery import Recovery
from .replies import Replies


class GrpcServer:
    """From the first round to the goodbye. Coordinator, attendance, carrier and recovery each do their part."""

    def __init__(
        self,
        room: Admission,
        folder: Path,
        *,
        device: str = "cpu",
        at_server: Sequence[Watcher] = (),
        stop: threading.Event | None = None,
    ):
        assert room.task is not None
        self.plan, self._stop = room.plan, stop or threading.Event()
        self.server = build_server(room.plan, room.task, device)
        batches = [known.get("batches", 0) for known in room.known]
        self.coordinator = Coordinator(room.plan, self.server, batches)
        codes = [bytes.fromhex(known.get("batches_code", "")) for known in room.known]
        if all(codes):
            self.coordinator.counts = counts_tensor(batches, codes)
        self.progress, self.ledger = self.coordinator.progress, self.coordinator.ledger
        self.replies = Replies(self.coordinator, device, at_server)
        self.attendance = Attendance(room, self.replies.forget, self._stop)
        self.connections = room.connections
        self.carrier = GrpcCarrier(self.coordinator, room.task, self.attendance, self.replies)
        self.recovery = Recovery(self.carrier, self.attendance, room, folder)
        self._room, self._wakeup = room, room.wakeup
        self.last: list[float] = []  # test accuracies at the end,
        self.used: list[float] = []  # and of the best epoch where one was kept
        room.predictor = partial(serve_predictions, self.carrier)

    def run(
        self,
        on_step: Callable[[StepEvent], None] = lambda event: None,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> bool:
        """To the end of the plan, or until it is asked to stop. True: finished."""

        def epoch() -> None:
            self.recovery.keep()
            on_epoch()

        if self.recovery.kept < 0:
            self.recovery.restore_newest()
        while True:
            try:
                self.recovery.meet_if_needed()
                finished = loop.train(
                    self.coordinator,
                    self.carrier,
                    on_step=on_step,
                    on_round=self.recovery.keep_if_due,
                    on_epoch=epoch,
                    stop=self._stop.is_set,
                )
                if finished:
                    self.last = self.carrier.evaluate("test")
                    loop.back_to_best(self.coordinator, self.carrier)
                    self.used = self.carrier.evaluate("test")
                elif self.recovery.kept >= 0:
                    self.recovery.keep()
                return finished
            except Lost as lost:
                self.recovery.lost(str(lost))
            except Stopped:
                return False

    def use_kept(self) -> None:
        """Where a finished run stood, with the body of its best epoch: to answer predictions."""
        self.recovery.restore_newest()
        if self.coordinator.has_best:
            self.coordinator.load(self.progress.best.tensors)

    def part(self, told: Callable[[str], None]) -> None:
        """Tell clients that the run is over. Its result is on disk by now: who stays away misses only the news."""
        self.attendance.parting = True
        for connection in sorted(self.connections, key=lambda one: not one.connected):
            if connection.name not in self._room.ended:
                self._part_with(connection, told)

    def stay(self, told: Callable[[str], None]) -> None:
        """Until it is asked to stop: predictions are answered, and a client that comes only now hears the end."""
        while not self._stop.is_set():
            self._wakeup.wait_for(lambda: self._stop.is_set() or bool(self._late()))
            for connection in self._late():
                if not self._part_with(connection, told):
                    self.attendance.wait_in_vain(connection)

    def _late(self) -> list[ClientConnection]:
        return [one for one in self.connections if one.connected and one.name not in self._room.ended]

    def _part_with(self, connection: ClientConnection, told: Callable[[str], None]) -> bool:
        if not self._tell_the_end(connection):
            return False
        self._room.ended.add(connection.name)
        told(connection.name)
        connection.goodbye()
        return True

    def _tell_the_end(self, connection: ClientConnection) -> bool:
        absent = connection.number in self.attendance.absent
        until = time.monotonic() + self.attendance.limits.deadline
        carrier, number = self.carrier, connection.number
        while True:
            try:
                if not connection.in_step:
                    if not self.attendance.wait_for(connection, 0.0 if absent else until):
                        return False
                    connection.agree()
                    carrier.ask(number, carrier.order(Kind.REWIND, number, self.recovery.newest_of(connection)))
                    if self.coordinator.has_best:
                        carrier.ask(number, carrier.order(Kind.REWIND, number, loop.BEST))
                inexact = int(not self.attendance.exact)
                carrier.ask(number, carrier.order(Kind.END, number, inexact, self.coordinator.shown(number)))
                return True
            except Lost:  # it was killed, perhaps, and comes back; or it never means to hear us out
                if time.monotonic() >= until:
                    return False
            except (Absent, Stopped):
                return False

    def stop(self) -> None:
        """End after the current turn, with a snapshot; do not wait for clients that are away."""
        self._stop.set()
        self._wakeup.ring()
        for connection in self.connections:
            connection.stop()

    def status(self) -> dict[str, Any]:
        """How it is, for whoever asks."""
        now, progress, attendance = time.monotonic(), self.progress, self.attendance
        return {
            "epoch": progress.epoch,
            "epochs": self.plan.epochs,
            "step": progress.step,
            "steps": self.coordinator.timetable.steps,
            "accuracy": progress.history[-1].get("val") if progress.history else None,
            "waiting_for": attendance.waiting_for,
            "snapshot": self.recovery.kept,
            "rewinds": self.recovery.rewinds,
            "exact": attendance.exact,
            "skipped": len(attendance.skipped),
            "ledger": self.ledger.as_dict(),
            "clients": [
                {
                    "name": connection.name,
                    "connected": connection.connected,
                    "waited_for": attendance.waited_for(connection),
                    "skipped": connection.number in attendance.absent,
                    "steps": progress.taken[connection.number],
                    "connections": connection.connections,
                    "silent": round(now - connection.heard_at, 1) if connection.heard_at else None,
                }
                for connection in self.connections
            ],
        }
