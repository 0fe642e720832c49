"""Orders to clients elsewhere: an order, the questions it leads to, and its answer, each checked before it counts."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

import torch

from ...core.batch import Task
from ...core.message import Kind, Message
from ...core.state import State
from ...training.coordinator import Coordinator
from ...training.orders import PURPOSES
from ...training.plan.schedule import Turn
from ...wire import frames
from ...wire.ledger import DOWN, UP
from .answers import AnswerValidator
from .attendance import Attendance, log
from .barrier import Abandoned
from .connection import Absent, ClientConnection, Lost, Stopped
from .pace import Pace, TurnClock
from .replies import Replies
from .session import Frame, Refused
from .validation import MessageValidator

AT_ONCE = 32  # clients that follow an order at a time which has nothing to do with the others'
_Found = TypeVar("_Found")


class GrpcCarrier:
    """Asks clients over their connections, all of a round at once where the plan allows it."""

    def __init__(self, coordinator: Coordinator, task: Task, attendance: Attendance, replies: Replies):
        self.coordinator, self.task, self.attendance, self.replies = coordinator, task, attendance, replies
        self.connections = attendance.connections
        self.pace = Pace(attendance.limits)
        self._answers = AnswerValidator(coordinator, task)
        self._validators = [MessageValidator(coordinator.plan, task) for _ in self.connections]

    # ------------------------------------------------------------------- what an engine is
    def ask_all(self, turns: Sequence[Turn]) -> list[Message | None]:
        """All clients of a round at once, where the order of their messages cannot matter or is kept."""
        plan, here = self.coordinator.plan, [turn for turn in turns if self._is_here(turn)]
        self.replies.open_round()
        if plan.rounds.waves or plan.rounds.own_bodies or not plan.protocol.crosses:
            found = self._at_once(here)
        else:
            found = [self._one(turn) for turn in here]
        brought = {turn.client: done for turn, done in zip(here, found, strict=True)}
        return [brought.get(turn.client) for turn in turns]

    def evaluate(self, purpose: str) -> list[float]:
        """Of each client, in their order. Side by side, unless somebody at the server listens: that hears one after
        the other, as in one process."""
        present = self.attendance.present()
        asked = present[:1] if self.coordinator.alike and not self.attendance.own_data() else present
        scores = side_by_side(lambda one: self._score(one, purpose), asked, 1 if self.replies.heard else AT_ONCE)
        return [right / count for right, count in scores if count]

    def _score(self, connection: ClientConnection, purpose: str) -> tuple[int, int]:
        """How many of its samples a client got right, and of how many."""
        coordinator, number = self.coordinator, connection.number
        what = torch.tensor([PURPOSES.index(purpose), coordinator.progress.epoch])
        weights = {} if number in coordinator.heads_of_their_own() else coordinator.shown(number)
        order = Message(Kind.EVALUATE, number, coordinator.progress.taken[number], {"what": what, **weights})
        try:
            right, count = self.ask(number, order)["score"].tolist()
        except Absent:
            self.attendance.wait_in_vain(connection)
            return 0, 0
        return right, count

    def keep(self, number: int) -> State:
        """Clients keep what is theirs at home; nothing of it comes here."""
        self._everybody(Kind.KEEP, number)
        return {}

    def rewind(self, number: int, kept: Mapping[str, torch.Tensor]) -> None:
        self._everybody(Kind.REWIND, number)

    # ----------------------------------------------------------------------------- rounds
    def _is_here(self, turn: Turn) -> bool:
        """Whether a client takes part in a round; one that had stayed away may have come back."""
        if turn.client not in self.attendance.absent or self._come_back(self.connections[turn.client]):
            return True
        if turn.first < turn.last:
            self.attendance.skip(turn, self.coordinator.progress.epoch)
        else:
            self.attendance.wait_for_anybody()
        return False

    def _come_back(self, connection: ClientConnection) -> bool:
        """A client that had stayed away takes part again, from where it stands itself."""
        if not connection.connected:
            return False
        connection.agree()
        newest = max(connection.facts["snapshots"], default=0)
        try:
            done = self.ask(connection.number, self.order(Kind.REWIND, connection.number, newest))
        except Absent:
            self.attendance.wait_in_vain(connection)
            return False
        except Lost:
            self.attendance.note_banned(connection)
            return False
        self.coordinator.progress.taken[connection.number] = int(done["steps"])
        self.attendance.back(connection)
        return True

    def _at_once(self, turns: Sequence[Turn]) -> list[Message | None]:
        barrier = self.replies.open_wave(turns) if self.coordinator.plan.rounds.waves else None
        found: list[Message | None] = [None] * len(turns)
        errors: list[BaseException] = []

        def work(place: int) -> None:
            try:
                found[place] = self._one(turns[place])
                if barrier is not None:
                    barrier.leave(turns[place].client)
            except BaseException as error:
                errors.append(error)
                if isinstance(error, Abandoned):  # it waits for an answer that will not come: it is to begin anew
                    self.connections[turns[place].client].drop()
                if barrier is not None:
                    barrier.abandon()

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(turns))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.replies.close_wave()
        if errors:  # what made the others give up comes first
            raise min(errors, key=lambda error: (isinstance(error, Abandoned), not isinstance(error, Stopped)))
        return found

    def _one(self, turn: Turn) -> Message | None:
        """One client's part in a round; None if it stayed away, or if what it brought is left out."""
        connection, coordinator = self.connections[turn.client], self.coordinator
        try:
            done = coordinator.received(turn, self.ask(turn.client, coordinator.order(turn)))
            if turn.client not in self.replies.voided:
                return done
            if done is not None:
                coordinator.reject(turn.client, "what it sent could not be computed without NaN or infinity")
            return None
        except Absent:
            self.attendance.wait_in_vain(connection)
            if self._validators[turn.client].touched:  # a turn counts as a whole or not at all
                raise Lost(connection.name) from None
            if turn.first < turn.last:
                self.attendance.skip(turn, coordinator.progress.epoch)
            return None

    # -------------------------------------------------------------------------- one order
    def order(self, kind: Kind, client: int, number: int, weights: State | None = None) -> Message:
        """An order about snapshots."""
        what = {"number": torch.tensor([number]), **(weights or {})}
        return Message(kind, client, self.coordinator.progress.taken[client], what)

    def _everybody(self, kind: Kind, number: int) -> None:
        def one(connection: ClientConnection) -> None:
            try:
                self.ask(connection.number, self.order(kind, connection.number, number))
            except Absent:
                self.attendance.wait_in_vain(connection)

        side_by_side(one, self.attendance.present())

    def ask(self, client: int, order: Message) -> Message:
        """Have a client follow an order, answer its questions, and return its own answer."""
        connection, validator = self.connections[client], self._validators[client]
        coordinator, plan = self.coordinator, self.coordinator.plan
        validator.open(order)
        clock = self.pace.clock(order)
        try:
            self._send(connection, order)
        except Refused as error:
            if error.name != "window":  # of our own making
                raise
            self._refuse(connection, error)
        while True:
            with self.attendance.waiting([connection]):
                frame = self._frame(connection, clock)
            try:
                message = decoded(frame, connection.limit)
                if message.kind is order.kind:
                    self._answers.check(order, message, client)
                    validator.closed(message)
                    clock.done()
                    if validator.silent and "turn" in order.tensors and int(message["samples"]):
                        self._learnt(int(order["turn"][2] - order["turn"][1]))
                    return message
                validator.check(message, client)
                with coordinator.counting:
                    if message.kind is Kind.PREDICT:
                        coordinator.ledger.samples["predicting"] += len(message["z"])
                    coordinator.ledger.note(message, UP, len(frame))
                validator.passed(message)  # whatever comes of it, the body may not be what it was
                reply = self.replies.to(message)
                self._send(connection, reply, counted=True)
                self.replies.catch_up(message)  # while the client goes on: a large body takes a while
            except Refused as error:
                self._refuse(connection, error)
            last = message.kind is Kind.BACKWARD and (message.step + 1) % plan.micro_batches == 0
            if last or (message.kind is Kind.LOSS and validator.frozen):
                self._learnt(1)

    def _learnt(self, steps: int) -> None:
        with self.coordinator.counting:
            for _ in range(steps):
                self.coordinator.progress.learnt()

    def _refuse(self, connection: ClientConnection, error: Refused) -> NoReturn:
        """Tell the client, and go back to before its turn: nothing it did in it stays."""
        log.warning("refused", extra={"facts": {"client": connection.name, "error": error.name, "text": str(error)}})
        connection.strikes += 1
        self.replies.forget(connection.number)
        connection.drop(error)
        raise Lost(connection.name) from error

    def _frame(self, connection: ClientConnection, clock: TurnClock) -> Frame:
        """A client's next frame. With nobody there nobody is late: it is then our own network that is away."""
        while True:
            try:
                with clock.running():
                    return connection.receive(min(self.attendance.limits.deadline, clock.left(connection.name)))
            except Absent:
                if self.attendance.parting or self.attendance.anybody():
                    raise
                clock.forgive()
            self.attendance.wait_for_anybody()

    def _send(self, connection: ClientConnection, message: Message, counted: bool = False) -> None:
        frame = frames.pieces(message)
        if counted:
            with self.coordinator.counting:
                self.coordinator.ledger.note(message, DOWN, len(frame))
        connection.send(frame)


def side_by_side(
    work: Callable[[ClientConnection], _Found], connections: Sequence[ClientConnection], at_once: int = AT_ONCE
) -> list[_Found]:
    """What comes of each, in their order. Each waits for its own disk or data: one after the other, a snapshot of
    hundreds takes as long as all of them together. Everybody comes to an end before the first error is raised."""
    with ThreadPoolExecutor(max(1, min(at_once, len(connections)))) as pool:
        return list(pool.map(work, connections))


def serve_predictions(carrier: GrpcCarrier, connection: ClientConnection) -> None:
    """Answer a connection that only predicts, beside whatever the coordinator does."""
    validator = MessageValidator(carrier.coordinator.plan, carrier.task)
    validator.open(None)
    try:
        while True:
            frame = connection.receive(carrier.attendance.limits.deadline)
            message = decoded(frame, connection.limit)
            validator.check(message, connection.number)
            connection.send(frames.pieces(carrier.replies.to(message)))
    except Refused as error:
        connection.strikes += 1
        connection.drop(error)
    except (Lost, Absent, Stopped):
        connection.drop()


def decoded(frame: Frame, limit: int) -> Message:
    try:
        return frames.decode(frame, limit, in_place=True)
    except frames.WireError as error:
        raise Refused("garbage", str(error)) from error
