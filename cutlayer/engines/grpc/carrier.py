"""What a server and a client elsewhere say to each other: an order, the questions it leads to, and its answer.

Whatever comes is validated before anything is computed, and nothing that is not a number leaves.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...core.errors import NonFinite, ProtocolError
from ...core.message import Kind, Message, Watcher, through
from ...training.build import build_server
from ...training.coordinator import Coordinator
from ...training.fused_wave import FUSED
from ...training.orders import weights_in
from ...training.plan.schedule import Wave
from ...wire import frames
from ...wire.ledger import DOWN, UP
from .admission import Admission
from .barrier import RoundBarrier
from .connection import Absent, ClientConnection, Lost, Stopped
from .session import Frame, Refused
from .validation import MessageValidator, finite

log = logging.getLogger("cutlayer.serve")


class GrpcCarrier(Coordinator):
    """A coordinator that asks clients over their connections."""

    def __init__(
        self,
        room: Admission,
        *,
        device: str = "cpu",
        at_server: Sequence[Watcher] = (),
        stop: threading.Event | None = None,
    ):
        assert room.task is not None
        self.admission, self.connections, self.limits, self.task = room, room.connections, room.limits, room.task
        server = build_server(room.plan, room.task, device)
        super().__init__(room.plan, server, [known.get("batches", 0) for known in room.known])
        self.device, self._stop = device, stop or threading.Event()
        self._handle = through([*at_server, *self.start_detectors()], server.handle)
        if at_server and isinstance(room.plan.rounds, Wave) and room.plan.rounds.fused:
            raise ValueError("watchers hear one message at a time, and a fused wave answers all at once: fused=False")
        self._validators = [MessageValidator(room.plan, room.task) for _ in self.connections]
        self._computing = self.lock
        self._barrier: RoundBarrier | None = None
        self._voided: set[int] = set()  # clients whose turn of this round counts for nothing
        self.waiting_for = ""
        room.predictor = self._predict

    def ask(self, client: int, order: Message) -> Message:
        connection, validator = self.connections[client], self._validators[client]
        validator.open(order)
        try:
            self._send(connection, order)
        except Refused as error:
            if error.name != "window":  # of our own making
                raise
            self._refuse(connection, error)
        while True:
            self.waiting_for = connection.name
            frame = self._frame(connection)
            try:
                message = _decoded(frame, connection.limit)
                if message.kind is order.kind:
                    self._refuse_wrong_answer(order, message, client)
                    validator.closed(message)
                    if not self.plan.protocol.crosses and "turn" in order.tensors and int(message["samples"]):
                        with self.lock:
                            for _ in range(int(order["turn"][2] - order["turn"][1])):
                                self.learnt()
                    return message
                validator.check(message, client)
                with self.lock:
                    if message.kind is Kind.PREDICT:
                        self.ledger.samples["predicting"] += len(message["z"])
                    self.ledger.note(message, UP, len(frame))
                validator.passed(message)  # whatever comes of it, the body may not be what it was
                reply = self._computed(message)
                self._send(connection, reply, counted=True)
                self._refuse_lost_weights(message)  # while the client goes on: a large body takes a while to look at
            except Refused as error:
                self._refuse(connection, error)
            last = message.kind is Kind.BACKWARD and (message.step + 1) % self.plan.micro_batches == 0
            if last or (message.kind is Kind.LOSS and validator.frozen):
                with self.lock:
                    self.learnt()

    def _refuse(self, connection: ClientConnection, error: Refused) -> NoReturn:
        """Tell the client, and go back to before its turn: nothing it did in it stays."""
        log.warning("refused", extra={"facts": {"client": connection.name, "error": error.name, "text": str(error)}})
        connection.strikes += 1
        with self._computing:
            self.server.forget(connection.number)
        connection.drop(error)
        raise Lost(connection.name) from error

    def _computed(self, message: Message) -> Message:
        """The body's answer. Numbers may be so large, or rows so few, that a message of the right form has none."""
        merges = self.plan.rounds.merges
        try:
            barrier = self._barrier  # one that only predicts may come just as a wave ends
            reply = barrier.answer(message) if barrier is not None else self._alone(message)
            if merges:
                _lost(message, reply)
        except NonFinite as error:
            if not merges or message.kind not in FUSED:
                raise Refused("non-finite", str(error)) from error
            return self._void(message)
        except (ProtocolError, RuntimeError, ValueError) as error:
            raise Refused("failed", f"{message} cannot be computed: {error}") from error
        _refuse_non_finite(message, reply.tensors)
        return reply

    def _void(self, message: Message) -> Message:
        """To a client whose turn cannot be computed: nothing. It gives its turn up, and the round goes on."""
        with self.lock:
            self.server.forget(message.client)
            self._voided.add(message.client)
        return message.reply()

    def _alone(self, message: Message) -> Message:
        with self._computing:
            return self._handle(message.to(self.device))

    def _refuse_lost_weights(self, message: Message) -> None:
        # Copies and gradients that are still to be merged are looked at when they are.
        merges = self.plan.rounds.merges
        if message.kind is Kind.BACKWARD and self.server.optimizer is not None and not merges:
            _refuse_non_finite(message, self.server.body.state_dict())

    def _frame(self, connection: ClientConnection) -> Frame:
        """A client's next frame. With nobody there nobody is late: it is then our own network that is away."""
        while True:
            try:
                return connection.receive(self.limits.deadline)
            except Absent:
                if any(other.connected for other in self.connections):
                    raise
            self._wait_for_anybody()

    def _wait_for_anybody(self) -> None:
        self.admission.wakeup.wait_for(lambda: self._stop.is_set() or self._anybody())
        if not self._anybody():
            raise Stopped

    def _anybody(self) -> bool:
        return any(one.connected for one in self.connections)

    def _send(self, connection: ClientConnection, message: Message, counted: bool = False) -> None:
        frame = frames.encode(message)
        if counted:
            with self.lock:
                self.ledger.note(message, DOWN, len(frame))
        connection.send(frame)

    def _refuse_wrong_answer(self, order: Message, answer: Message, client: int) -> None:
        """What a client may answer an order with; weights like those that were handed on before."""
        if answer.client != client:
            raise Refused("unknown client", f"{answer}: this connection is client {client}")
        whole = {Kind.TURN: ("samples", 1), Kind.WEIGHTS: ("samples", 1), Kind.EVALUATE: ("score", 2)}
        name, count = whole.get(order.kind, ("steps", 1))
        weights = weights_in(answer)
        found = answer.tensors.get(name)
        if found is None or found.dtype != torch.int64 or tuple(found.shape) != (count,) or int(found.min()) < 0:
            raise Refused("shape", f"{answer} should carry {count} whole numbers as {name!r}")
        batches = int(order["turn"][2] - order["turn"][1]) if name == "samples" else 0
        if answer.step != order.step + batches:
            raise Refused("step", f"{answer} where step {order.step + batches} was expected")
        most = batches * 2 * self.plan.batch_size  # as the validator allows
        if (name == "samples" and int(found[0]) > most) or (name == "score" and int(found[0]) > int(found[1])):
            raise Refused("range", f"{answer} with {name} {found.tolist()}, more than there can be")
        frozen = name == "samples" and bool(order["turn"][3])
        if set(answer.tensors) != {name, *weights} or bool(weights) != (order.kind is Kind.WEIGHTS and not frozen):
            raise Refused("shape", f"{answer} carries {sorted(answer.tensors)[:4]}")
        merges = self.plan.rounds.merges  # an update with NaN is then left out of its round, which goes on
        if not merges and any(t.is_floating_point() and not finite(t) for t in weights.values()):
            raise Refused("non-finite", f"{answer}: the weights hold NaN or infinity")
        if weights and self.shared and not merges and _form(weights) != _form(self.shared):
            raise Refused("shape", f"{answer}: other weights than the ones handed on")

    def _predict(self, connection: ClientConnection) -> None:
        """Serve a connection that only predicts, beside whatever the coordinator does."""
        validator = MessageValidator(self.plan, self.task)
        validator.open(None)
        try:
            while True:
                frame = connection.receive(self.limits.deadline)
                message = _decoded(frame, connection.limit)
                validator.check(message, connection.number)
                connection.send(frames.encode(self._computed(message)))
        except Refused as error:
            connection.drop(error)
        except (Lost, Absent, Stopped):
            connection.drop()


def _lost(message: Message, reply: Message) -> None:
    if message.kind in FUSED and not all(bool(t.isfinite().all()) for t in reply.tensors.values()):
        raise NonFinite(f"{message} leads to NaN or infinity")


def _refuse_non_finite(message: Message, tensors: Mapping[str, torch.Tensor]) -> None:
    sums = [tensor.sum() for tensor in tensors.values()]
    if not all(bool(total.isfinite()) for total in sums):
        raise Refused("non-finite", f"{message} leads to NaN or infinity: its numbers, or a rate, are too large")


def _form(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (tuple(t.shape), t.dtype) for name, t in state.items()}


def _decoded(frame: Frame, limit: int) -> Message:
    try:
        return frames.decode(frame, limit)
    except frames.WireError as error:
        raise Refused("garbage", str(error)) from error
