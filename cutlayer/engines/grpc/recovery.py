"""Snapshots that all parties share, and the way back to them after any crash."""

from collections import Counter
from pathlib import Path

from ...core.message import Kind
from ...training.checkpoint import Snapshots
from . import admission as admission
from .admission import Admission
from .attendance import Attendance, log
from .carrier import GrpcCarrier, side_by_side
from .connection import Absent, ClientConnection


class Recovery:
    """A snapshot counts once everybody has it; who comes back meets the others at the newest common one."""

    def __init__(self, carrier: GrpcCarrier, attendance: Attendance, room: Admission, folder: Path):
        self.carrier, self.attendance, self._known = carrier, attendance, room.known
        self.coordinator, self.progress = carrier.coordinator, carrier.coordinator.progress
        self.snapshots = Snapshots(folder / "snapshots")
        self.kept = -1  # the newest snapshot that everybody has
        self._kept_step = 0
        self.rewinds = 0
        self.astray = False  # the server did something for a turn that is not going to end
        self._losses: Counter[str] = Counter()

    def restore_newest(self) -> None:
        """Where the server stood when it was last there."""
        numbers = self.snapshots.numbers()
        if numbers:
            self._go_to(numbers[-1])
        else:
            self._write(0)

    def keep_if_due(self) -> None:
        """Between two rounds."""
        if self.progress.step - self._kept_step >= self.attendance.limits.every:
            self.keep()

    def keep(self) -> None:
        """Everybody writes a snapshot; it counts once the server has written its own."""
        number = self.kept + 1
        self.carrier.keep(number)
        self._write(number)
        for connection in self.attendance.present():
            connection.facts["snapshots"] = [*connection.facts["snapshots"], number][-2:]

    def lost(self, name: str) -> None:
        """A client went away in the middle of something. One that does so again and again is left out."""
        log.info("lost", extra={"facts": {"client": name, "step": self.progress.step}})
        self._losses[name] += 1
        self.astray = True
        connection = next(one for one in self.attendance.connections if one.name == name)
        if self._losses[name] > admission.LOSSES:
            connection.strikes += 1  # it may come back, and to be lost again: then nobody gets to the next snapshot
            self.attendance.lose(connection)
        elif admission.banned(connection):
            self.attendance.lose(connection)

    def meet_if_needed(self) -> None:
        if self.astray or not all(one.in_step for one in self.attendance.present()):
            self._meet()
            self.astray = False

    def _meet(self) -> None:
        """Everybody to the newest snapshot that all have."""
        self.attendance.wait_for_all()
        present = self.attendance.present()
        common = set(self.snapshots.numbers()).intersection(*(one.facts["snapshots"] for one in present))
        if not common:
            log.warning("no common snapshot", extra={"facts": {}})
        stood = self.progress.step
        self._go_to(max(common, default=max(self.snapshots.numbers())))
        if not common:
            self.attendance.exact = False
        self.rewinds += self.progress.step < stood
        side_by_side(lambda connection: self._lead_back(connection, bool(common)), present)
        log.info("met", extra={"facts": {"snapshot": self.kept, "step": self.progress.step}})

    def _lead_back(self, connection: ClientConnection, common: bool) -> None:
        """One client to where the server stands, or as near as it can come."""
        connection.agree()
        theirs = self.kept if common else self.newest_of(connection)
        try:
            done = self.carrier.ask(connection.number, self.carrier.order(Kind.REWIND, connection.number, theirs))
        except Absent:
            self.attendance.wait_in_vain(connection)
            return
        connection.facts["snapshots"] = [one for one in connection.facts["snapshots"] if one <= self.kept]
        if not common:
            self.progress.taken[connection.number] = int(done["steps"])

    def newest_of(self, connection: ClientConnection) -> int:
        """The snapshot nearest to where the coordinator stands, of those a client has."""
        theirs: list[int] = connection.facts["snapshots"]
        return max((one for one in theirs if one <= self.kept), default=max(theirs, default=0))

    def _write(self, number: int) -> None:
        tensors, facts = self.coordinator.snapshot({})
        known = [{**one, "task": list(one["task"])} if one else {} for one in self._known]
        facts |= {"kept": number, "skipped": self.attendance.skipped, "exact": self.attendance.exact, "known": known}
        self.snapshots.save(number, tensors, facts)
        self.kept, self._kept_step = number, self.progress.step
        self._losses.clear()

    def _go_to(self, number: int) -> None:
        tensors, facts = self.snapshots.load(number)
        self.coordinator.restore(tensors, facts)
        self.kept, self._kept_step = number, self.progress.step
        self.attendance.restore(facts["skipped"], facts["exact"])
        for client in range(self.coordinator.plan.clients):
            self.coordinator.server.forget(client)
