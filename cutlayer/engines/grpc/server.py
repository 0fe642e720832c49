"""The server of a deployment: a plan trained over connections to clients elsewhere, and back after any crash."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from ...core.errors import NonFinite
from ...core.message import Kind, Message, Watcher
from ...core.state import State
from ...training.checkpoint import Snapshots
from ...training.fused_wave import Fusion
from ...training.orders import PURPOSES
from ...training.plan.schedule import Turn, Wave
from . import admission as admission
from .admission import Admission
from .barrier import Abandoned, RoundBarrier
from .carrier import GrpcCarrier, log
from .connection import Absent, ClientConnection, Lost, Stopped
from .session import Refused

BEST = -1  # the snapshot of the best epoch


class GrpcServer(GrpcCarrier):
    """A coordinator whose clients are elsewhere."""

    def __init__(
        self,
        room: Admission,
        folder: Path,
        *,
        device: str = "cpu",
        at_server: Sequence[Watcher] = (),
        stop: threading.Event | None = None,
    ):
        super().__init__(room, device=device, at_server=at_server, stop=stop)
        self.folder, self.snapshots = folder, Snapshots(folder / "snapshots")
        self.kept = -1  # the newest snapshot that everybody has
        self._kept_step = 0
        self.skipped: list[dict[str, Any]] = []  # turns of clients that stayed away
        self.absent: set[int] = set()
        self._losses: Counter[str] = Counter()
        self.rewinds = 0
        self.exact = True  # no turn was skipped and nobody lost its state
        self._astray = False  # the server did something for a turn that is not going to end

    # ------------------------------------------------------------------------- turns
    def run(self, **callbacks: Any) -> bool:
        """To the end of the plan, or until it is asked to stop. True: finished."""
        if self.kept < 0:
            self.restore_newest()
        while True:
            try:
                if self._astray or not all(one.in_step for one in self.connections if one.number not in self.absent):
                    self._meet()
                    self._astray = False
                finished = self.train(stop=self._stop.is_set, on_epoch=self._after_epoch, **callbacks)
                if finished:
                    self._finish()
                elif self.kept >= 0:
                    self.keep()
                return finished
            except Lost as lost:
                log.info("lost", extra={"facts": {"client": str(lost), "step": self.step}})
                self._losses[str(lost)] += 1
                self._astray = True
                connection = next(one for one in self.connections if one.name == str(lost))
                if connection.strikes >= admission.STRIKES or self._losses[str(lost)] > admission.LOSSES:
                    self._lose(connection)
            except Stopped:
                return False

    def restore_newest(self) -> None:
        """Where the server stood when it was last there."""
        numbers = self.snapshots.numbers()
        if numbers:
            self._go_to(numbers[-1])
        else:
            self._write(0)

    def _after_epoch(self) -> None:
        self.keep()
        self.on_epoch()

    def on_epoch(self) -> None:
        """For whoever shows how it goes."""

    def take(self, turns: Sequence[Turn]) -> None:
        here = []
        for turn in turns:
            if turn.client in self.absent and not self._come_back(self.connections[turn.client]):
                self._skip(turn)
            else:
                here.append(turn)
        self._voided.clear()
        if here:
            super().take(here)

    def gather(self, turns: Sequence[Turn]) -> list[Message | None]:
        """All clients of a round at once, where the order of their messages cannot matter or is kept."""
        rounds = self.plan.rounds
        if not (rounds.waves or rounds.own_bodies or not self.plan.protocol.crosses):
            return [self.committed(turn, self._one(turn)) for turn in turns]
        if isinstance(rounds, Wave):
            fused = self._fused(Fusion(self.server)) if rounds.fused else None
            frozen = [turn.client for turn in turns if turn.frozen]
            self._barrier = RoundBarrier([turn.client for turn in turns], self._alone, fused, frozen)
        found: list[Message | None] = [None] * len(turns)
        errors: list[BaseException] = []

        def work(place: int) -> None:
            try:
                found[place] = self._one(turns[place])
                if self._barrier is not None:
                    self._barrier.leave(turns[place].client)
            except BaseException as error:
                errors.append(error)
                if isinstance(error, Abandoned):  # it waits for an answer that will not come: it is to begin anew
                    self.connections[turns[place].client].drop()
                if self._barrier is not None:
                    self._barrier.abandon()

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(turns))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._barrier = None
        if errors:  # what made the others give up comes first
            raise min(errors, key=lambda error: (isinstance(error, Abandoned), not isinstance(error, Stopped)))
        return [self.committed(turn, done) for turn, done in zip(turns, found, strict=True)]

    def _fused(self, fusion: Fusion) -> Callable[[Sequence[Message]], list[Message]]:
        def together(messages: Sequence[Message]) -> list[Message]:
            with self._computing:
                return fusion([message.to(self.device) for message in messages])

        return together

    def _begin_alike(self, client: int) -> None:
        connection = self.connections[client]
        try:
            super()._begin_alike(client)
        except Absent:
            self._lose(connection)
            raise Lost(connection.name) from None
        except NonFinite as error:
            self._refuse(connection, Refused("non-finite", str(error)))

    def _one(self, turn: Turn) -> Message | None:
        """One client's part in a round; None if it stayed away, or if what it brought is left out."""
        connection = self.connections[turn.client]
        try:
            done = self._answer(turn)
            if turn.client not in self._voided:
                return done
            if done is not None:
                self.reject(turn.client, "what it sent could not be computed without NaN or infinity")
            return None
        except Absent:
            self._lose(connection)
            if self._validators[turn.client].touched:  # a turn counts as a whole or not at all
                raise Lost(connection.name) from None
            self._skip(turn)
            return None

    def _skip(self, turn: Turn) -> None:
        name = self.connections[turn.client].name
        self.skipped.append({"client": name, "epoch": self.epoch, "batches": turn.last - turn.first})
        self.exact = False
        log.warning("skipped", extra={"facts": {"client": name, "epoch": self.epoch}})
        self._wait_for_anybody()  # with nobody there, skipping would end the plan with nothing learnt

    def _lose(self, connection: ClientConnection) -> None:
        connection.drop()
        with self._computing:
            self.server.forget(connection.number)
        self.absent.add(connection.number)
        self.exact = False

    def _come_back(self, connection: ClientConnection) -> bool:
        """A client that had stayed away takes part again, from where it stands itself."""
        if not connection.connected:
            return False
        connection.agree()
        try:
            done = self.ask(
                connection.number,
                self._order(Kind.REWIND, connection.number, max(connection.facts["snapshots"], default=0)),
            )
        except (Absent, Lost):
            return False
        self.taken[connection.number] = int(done["steps"])
        self.absent.discard(connection.number)
        log.info("back", extra={"facts": {"client": connection.name}})
        return True

    def accuracies(self, purpose: str) -> list[float]:
        alike = self.alike and not any(k.get("own_data") for k in self.admission.known)
        present = [one.number for one in self.connections if one.number not in self.absent]
        found = []
        for number in present[:1] if alike else present:
            what = torch.tensor([PURPOSES.index(purpose), self.epoch])
            weights = {} if number in self.heads_of_their_own() else self.shown()
            order = Message(Kind.EVALUATE, number, self.taken[number], {"what": what, **weights})
            try:
                right, count = self.ask(number, order)["score"].tolist()
            except Absent:
                self._lose(self.connections[number])
                continue
            found += [right / count] if count else []
        return found

    # --------------------------------------------------------------------- snapshots
    def after_turn(self) -> None:
        if self.step - self._kept_step >= self.limits.every:
            self.keep()

    def keep(self) -> None:
        """Everybody writes a snapshot; it counts once the server has written its own."""
        number = self.kept + 1
        self._everybody(Kind.KEEP, number)
        self._write(number)
        for connection in self.connections:
            if connection.number not in self.absent:
                connection.facts["snapshots"] = [*connection.facts["snapshots"], number][-2:]

    def best_now(self) -> dict[str, torch.Tensor]:
        self._everybody(Kind.KEEP, BEST)
        return super().tensors()

    def _write(self, number: int) -> None:
        tensors, facts = self.snapshot()
        known = [{**one, "task": list(one["task"])} if one else {} for one in self.admission.known]
        facts |= {"kept": number, "skipped": self.skipped, "exact": self.exact, "known": known}
        self.snapshots.save(number, tensors, facts)
        self.kept, self._kept_step = number, self.step
        self._losses.clear()

    def _go_to(self, number: int) -> None:
        tensors, facts = self.snapshots.load(number)
        self.restore(tensors, facts)
        self.kept, self._kept_step = number, self.step
        self.skipped, self.exact = list(facts["skipped"]), facts["exact"]
        for client in range(self.plan.clients):
            self.server.forget(client)

    def _meet(self) -> None:
        """Everybody to the newest snapshot that all have."""
        self._gather()
        present = [one for one in self.connections if one.number not in self.absent]
        common = set(self.snapshots.numbers()).intersection(*(one.facts["snapshots"] for one in present))
        if not common:
            log.warning("no common snapshot", extra={"facts": {}})
        stood = self.step
        self._go_to(max(common, default=max(self.snapshots.numbers())))
        self.exact = self.exact and bool(common)
        self.rewinds += self.step < stood
        for connection in present:
            connection.agree()
            theirs = self.kept if common else self._newest_of(connection)
            try:
                done = self.ask(connection.number, self._order(Kind.REWIND, connection.number, theirs))
            except Absent:
                self._lose(connection)
                continue
            connection.facts["snapshots"] = [one for one in connection.facts["snapshots"] if one <= self.kept]
            if not common:
                self.taken[connection.number] = int(done["steps"])
        log.info("met", extra={"facts": {"snapshot": self.kept, "step": self.step}})

    def _gather(self) -> None:
        """Wait until every client is there; the run goes on without those that stay away past the deadline."""
        began = time.monotonic()
        while missing := self._missing():
            self.waiting_for = missing[0].name
            if self._stop.is_set():
                raise Stopped
            if banned := [one for one in missing if one.strikes >= admission.STRIKES]:
                for connection in banned:
                    self._lose(connection)
            elif not self._anybody():
                self._wait_for_anybody()
                began = time.monotonic()  # nobody is late while nobody is there: it is our network that is away
            elif time.monotonic() - began > self.limits.deadline:
                for connection in missing:
                    self._lose(connection)
            else:
                left = began + self.limits.deadline - time.monotonic()
                self.admission.wakeup.wait_for(lambda: self._stop.is_set() or self._missing() != missing, left)

    def _missing(self) -> list[ClientConnection]:
        return [one for one in self.connections if one.number not in self.absent and not one.connected]

    def _order(self, kind: Kind, client: int, number: int) -> Message:
        return Message(kind, client, self.taken[client], {"number": torch.tensor([number])})

    def _everybody(self, kind: Kind, number: int, weights: State | None = None) -> None:
        for connection in self.connections:
            if connection.number in self.absent:
                continue
            order = self._order(kind, connection.number, number)
            try:
                self.ask(
                    connection.number,
                    Message(kind, connection.number, order.step, {**order.tensors, **(weights or {})}),
                )
            except Absent:
                self._lose(connection)

    def _finish(self) -> None:
        """The best epoch where one was kept, and what it is worth."""
        self.last = self.accuracies("test")
        if self.best.tensors:
            self.load(self.best.tensors)
            self._everybody(Kind.REWIND, BEST)
        self.used = self.accuracies("test")
        self.waiting_for = ""

    def part(self, told: Callable[[str], None], already: Collection[str] = ()) -> None:
        """Tell clients that the run is over. Its result is on disk by now: who stays away misses only the news."""
        for connection in sorted(self.connections, key=lambda one: not one.connected):
            if connection.name not in already and self._tell_the_end(connection):
                told(connection.name)
                connection.goodbye()
        self.waiting_for = ""

    def _tell_the_end(self, connection: ClientConnection) -> bool:
        began, patience = time.monotonic(), 0.0 if connection.number in self.absent else self.limits.deadline
        while True:
            try:
                if not connection.in_step:
                    self.waiting_for = connection.name
                    left = max(0.0, began + patience - time.monotonic())
                    self.admission.wakeup.wait_for(lambda: self._stop.is_set() or connection.connected, left)
                    if not connection.connected:
                        return False
                    connection.agree()
                    self.ask(
                        connection.number, self._order(Kind.REWIND, connection.number, self._newest_of(connection))
                    )
                    if self.best.tensors:
                        self.ask(connection.number, self._order(Kind.REWIND, connection.number, BEST))
                order = self._order(Kind.END, connection.number, 0)
                last = {**order.tensors, **self.shown()}
                self.ask(connection.number, Message(order.kind, order.client, order.step, last))
                return True
            except Lost:
                continue
            except (Absent, Stopped):
                return False

    def _newest_of(self, connection: ClientConnection) -> int:
        """The snapshot nearest to where the coordinator stands, of those a client has."""
        theirs: list[int] = connection.facts["snapshots"]
        return max((one for one in theirs if one <= self.kept), default=max(theirs, default=0))

    def stop(self) -> None:
        """End after the current turn, with a snapshot; do not wait for clients that are away."""
        self._stop.set()
        self.admission.wakeup.ring()
        for connection in self.connections:
            connection.stop()

    # ----------------------------------------------------------------------- how it is
    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "epoch": self.epoch,
            "epochs": self.plan.epochs,
            "step": self.step,
            "steps": self.steps,
            "accuracy": self.history[-1].get("val") if self.history else None,
            "waiting_for": self.waiting_for,
            "snapshot": self.kept,
            "rewinds": self.rewinds,
            "exact": self.exact,
            "skipped": len(self.skipped),
            "ledger": self.ledger.as_dict(),
            "clients": [
                {
                    "name": connection.name,
                    "connected": connection.connected,
                    "skipped": connection.number in self.absent,
                    "steps": self.taken[connection.number],
                    "connections": connection.connections,
                    "silent": round(now - connection.heard_at, 1) if connection.heard_at else None,
                }
                for connection in self.connections
            ],
        }
