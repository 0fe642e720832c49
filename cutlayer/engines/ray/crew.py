"""Many clients in one process: a crew plays whichever client is given an order, and keeps nothing that it could lose.

A client is its secrets, which follow from the plan, and what it has kept since its last turn, which lies with the
server's actor (`Shelf`). So a crew that is killed costs the turn it was at. Those played last stay ready here.

An order makes a client ask the server, in the middle of its own forward and backward pass. It runs in a thread for
that, and what it asks goes back as the crew's answer; with `go_on` it hears the reply.
"""

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.batch import Task
from ...core.message import Kind, Message
from ...data.base import Parts
from ...training.own_data import OwnData, Uplink
from ...training.plan.plan import Plan
from ...wire import frames
from ...wire.ledger import Ledger
from ..local.asleep import Asleep, Layout, Seat
from ..local.carrier import FusedDoor, part_of
from ..local.pool import AWAKE, PooledClient

NEW = 0  # the stamp of a client that has had no turn yet


class Setup(NamedTuple):
    """What everybody in a fleet is built from."""

    plan: Plan
    task: Task
    parts: Parts
    shares: (
        Tensor  # which samples are the first client's, the second's, …, in one piece: that of many is read at once
    )
    counts: Sequence[int]  # how many each has
    alike: bool  # all clients have one network, so that one speaks for all


class Order(NamedTuple):
    """An order in its frame, and which state of the client it is for: as it was left under this stamp."""

    frame: bytes
    stamp: int
    then: int  # the stamp of what it leaves
    keeps: bool  # that is its network, too, not only what it remembers beside it
    state: Asleep | None = None  # None: the crew may have it still


class Said(NamedTuple):
    """What a crew answers: questions for the server, or how all of its orders ended."""

    asks: Sequence[bytes] = ()
    lacks: bool = False  # it does not have some client's state: the orders are to come again, with states
    done: Sequence[bytes] = ()
    states: Sequence[Asleep] = ()
    steps: Sequence[tuple[int, Mapping[str, float]]] = ()  # by client, each step's terms
    samples: Mapping[str, int] = {}
    error: bytes | None = None  # a Python error, pickled


class Crew:
    """Plays the clients of a plan, those of one order at a time, or of a fused wave."""

    def __init__(self, setup: Setup):
        self._setup, self._shares = setup, setup.shares.split(list(setup.counts))
        self._ledger, self._layout, self._spares = Ledger(), Layout(), list[Seat]()
        self._awake: dict[int, tuple[int, PooledClient]] = {}  # by client, the one played last at the end
        self._steps: list[tuple[int, Mapping[str, float]]] = []
        self._talk = _Talk()
        fused = FusedDoor(self._ask, lambda messages: self._talk.ask(list(messages)), torch.device("cpu"))
        self._fused = fused if setup.plan.rounds.fused else None
        self._uplink = Uplink(self._fused or self._ask, self._ledger)

    def _ask(self, message: Message) -> Message:
        return self._talk.ask([message])[0]

    # ------------------------------------------------------------------------------------- orders
    def begin(self, orders: Sequence[Order]) -> Said:
        """Follow these orders. Whatever it was at before is given up."""
        self._talk.give_up()
        messages = [frames.decode(bytearray(order.frame)) for order in orders]
        clients = [self._client(message.client, order) for message, order in zip(messages, orders, strict=True)]
        if any(client is None for client in clients):
            return Said(lacks=True)
        self._steps, self._ledger.samples = [], Counter()
        for message, client in zip(messages, clients, strict=True):
            if client is not None and message.kind is not Kind.EVALUATE:
                client.continue_at(message.step)
        self._talk = _Talk()  # before anybody speaks
        self._talk.start(lambda: self._played(orders, messages))
        return self._talk.next()

    def go_on(self, replies: Sequence[bytes] | bytes) -> Said:
        """The server's answers; or its error, pickled, which the client hears as if it were its own."""
        if isinstance(replies, bytes):
            self._talk.hear(pickle.loads(replies))
        else:
            self._talk.hear([frames.decode(bytearray(reply)) for reply in replies])
        return self._talk.next()

    def _played(self, orders: Sequence[Order], messages: Sequence[Message]) -> Said:
        """All orders to their end."""
        numbers = [message.client for message in messages]
        playing = {number: self._awake.pop(number)[1] for number in numbers}
        try:
            if self._fused is not None and messages[0].kind is not Kind.EVALUATE:
                done = self._fused.side_by_side(messages, lambda order: playing[order.client].handle(order))
            else:
                done = [playing[order.client].handle(order) for order in messages]
        except Exception as error:
            return Said(steps=self._steps, samples=dict(self._ledger.samples), error=_pickled(error))
        states = []
        for order, (number, client) in zip(orders, playing.items(), strict=True):
            self._awake[number] = order.then, client
            if order.then != order.stamp:
                states.append(Asleep.of(client.own_state() if order.keeps else client.memory(), self._layout))
        answers = [bytes(frames.encode(one)) for one in done]
        return Said((), False, answers, states, self._steps, dict(self._ledger.samples))

    # ------------------------------------------------------------------------------------ clients
    def _client(self, number: int, order: Order) -> PooledClient | None:
        """This client as it was left under a stamp; None: its state is not here."""
        if number in self._awake:
            stamp, client = self._awake.pop(number)
            if stamp == order.stamp:
                self._awake[number] = stamp, client
                return client
        if order.stamp != NEW and order.state is None:
            return None
        client = self._built(number)
        if order.state is not None:
            client.load_state(order.state.state(torch.device("cpu")))
        self._awake[number] = order.stamp, client
        self._let_sleep()
        return client

    def _built(self, number: int) -> PooledClient:
        plan, task, parts, alike = self._setup.plan, self._setup.task, self._setup.parts, self._setup.alike
        held_out = {"validate": parts.val, "test": parts.test}
        own = {purpose: part_of(samples, number, plan, alike) for purpose, samples in held_out.items()}

        def stepped(epoch: int, terms: Mapping[str, float]) -> None:
            self._steps.append((number, dict(terms)))

        data = OwnData(parts.private, own, self._shares[number])
        return PooledClient(plan, task, number, data, self._uplink, "cpu", stepped, spares=self._spares)

    def _let_sleep(self) -> None:
        """Of very many, only those played last keep their networks: one that is given up serves the next."""
        while len(self._awake) > AWAKE and self._fused is None:
            oldest = next(iter(self._awake))
            self._awake.pop(oldest)[1].sleep(self._layout, keeps=False)


class _GivenUp(Exception):
    """Nobody waits for this client's answer any longer."""


class _Talk:
    """Clients that follow orders in a thread of their own, and what they say while they do."""

    def __init__(self) -> None:
        self._out: SimpleQueue[Said] = SimpleQueue()
        self._in: SimpleQueue[Any] = SimpleQueue()
        self._over = True

    def start(self, work: Callable[[], Said]) -> None:
        self._over = False
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Said]) -> None:
        try:
            self._out.put(work())
        except BaseException as error:  # whoever waits is to hear of it
            self._out.put(Said(error=_pickled(error)))

    def ask(self, messages: Sequence[Message]) -> list[Message]:
        """In the clients' thread: their questions out, and the replies."""
        self._out.put(Said([bytes(frames.encode(message)) for message in messages]))
        heard = self._in.get()
        if isinstance(heard, BaseException):
            raise heard
        return heard

    def next(self) -> Said:
        said = self._out.get()
        self._over = not said.asks
        return said

    def hear(self, replies: Any) -> None:
        self._in.put(replies)

    def give_up(self) -> None:
        """Whoever waits for a reply gets none."""
        while not self._over:
            self._in.put(_GivenUp())
            self.next()


def _pickled(error: BaseException) -> bytes:
    try:
        text = pickle.dumps(error)
        pickle.loads(text)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return text
