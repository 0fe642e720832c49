"""A server that does not keep to the plan: it orders what it likes of clients that do not know it."""

import threading
import time
from contextlib import contextmanager, suppress

import torch
from rehearsal import Rehearsal

from cutlayer.core.message import Kind, Message
from cutlayer.engines.grpc.connection import Lost
from cutlayer.engines.grpc.server import GrpcServer


class Crooked:
    """The server's side of a rehearsal, order by order."""

    def __init__(self, run: Rehearsal):
        self.run, room = run, run.service.admission
        until = time.monotonic() + 20
        while room.missing() or not all(one.connected for one in room.connections):
            assert time.monotonic() < until, run.errors
            time.sleep(0.01)
        self.host = GrpcServer(room, run.folder / "crooked")
        self.heard: list[Message] = []  # what clients sent that may be about their samples
        answer = self.host.replies.to

        def listening(message: Message) -> Message:
            self.heard.append(message)
            return answer(message)

        self.host.replies.to = listening  # type: ignore[method-assign]
        for connection in room.connections:
            connection.agree()

    def turn(self, client: int, epoch: int, first: int, last: int, step: int, **weights: torch.Tensor) -> Message:
        kind = Kind.WEIGHTS if self.host.coordinator.relays else Kind.TURN
        what = {"turn": torch.tensor([epoch, first, last, 0]), **weights}
        return self.ask(Message(kind, client, step, what))

    def evaluate(self, client: int, purpose: int, epoch: int, **weights: torch.Tensor) -> Message:
        return self.ask(Message(Kind.EVALUATE, client, 0, {"what": torch.tensor([purpose, epoch]), **weights}))

    def number(self, kind: Kind, client: int, number: int, **weights: torch.Tensor) -> Message:
        return self.ask(Message(kind, client, 0, {"number": torch.tensor([number]), **weights}))

    def ask(self, order: Message) -> Message:
        return self.host.carrier.ask(order.client, order)

    def sent(self, name: str = "z") -> list[torch.Tensor]:
        return [message[name] for message in self.heard if name in message.tensors]


@contextmanager
def crooked(plan, folder, names=("ward-a",), **options):
    run = Rehearsal(plan, folder, names=names, **options)
    for name in names:
        run.join(name)
    yield Crooked(run)


def refused(server: Crooked, order, client: int = 0) -> BaseException:
    """What the client says when it does not follow; an error here if it does."""
    orders = threading.Thread(target=lambda: _follow(server, order), daemon=True)
    orders.start()
    until = time.monotonic() + 20
    while not server.run.errors:
        assert orders.is_alive(), "the client followed"
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.01)
    server.run.service.admission.connections[client].drop()
    orders.join(5)
    return server.run.errors.pop()


def _follow(server: Crooked, order) -> None:
    with suppress(Lost):
        order()
