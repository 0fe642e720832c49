"""Orders to clients that crews play: each crew plays one client at a time, so as many compute as there are crews.

A crew may be killed at any moment. The replies of a turn are kept until it is over: its client begins anew in another
process, says the same again, and hears the same, without another step of the server.
"""

import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core.errors import NonFinite, ProtocolError
from ...core.message import Kind, Message, through
from ...core.state import State
from ...training.coordinator import Coordinator
from ...training.fused_wave import FUSED, Fusion
from ...training.orders import PURPOSES
from ...training.plan.schedule import Turn
from ...wire import frames
from ...wire.ledger import DOWN, UP
from ..local.asleep import Asleep, Layout
from ..local.pool import AWAKE
from .crew import Order, Said
from .shelf import Shelf

MOST_KEPT = 256 << 20  # bytes of replies of one turn: of a longer one, a lost crew is a reason to go back
MOST_LOST = 5  # times that crews are lost with one and the same turn


class LostCrew(RuntimeError):
    """A turn cannot be played again from its beginning: everybody goes back to the last snapshot."""


class Crews(Protocol):
    """The crews of a fleet, wherever they are."""

    def __len__(self) -> int: ...

    def begin(self, crew: int, orders: Sequence[Order]) -> Any:
        """A ticket for what it will say."""

    def go_on(self, crew: int, replies: Sequence[bytes] | bytes) -> Any: ...

    def first(self, tickets: Sequence[Any]) -> Any:
        """The first of these for which something was said."""

    def said(self, ticket: Any) -> Said | None:
        """None: the crew was lost."""

    def replaced(self, crew: int) -> None:
        """Wait until one is there in the place of a crew that was lost."""


@dataclass
class _Turns:
    """What one crew is at: the orders it was given, and what was said since."""

    crew: int
    orders: list[Message]
    then: list[int]  # stamps
    places: list[int]  # of each in its round
    keeps: bool  # their networks are more than what comes with their next orders
    replies: list[tuple[bytes, Sequence[bytes] | bytes]] = field(default_factory=list)  # by what was asked
    heard: int = 0  # how many of them the crew has had
    kept: int = 0  # bytes
    lost: int = 0
    ticket: Any = None


class RayCarrier:
    """As the carrier of one process; the server answers one message at a time, in an order that hangs on nobody."""

    def __init__(self, coordinator: Coordinator, crews: Crews, device: torch.device | str = "cpu"):
        if coordinator.watches and coordinator.plan.rounds.fused:
            raise ValueError(
                "detectors hear one message at a time, and a fused wave answers all at once: fused=False"
            )
        self.coordinator, self.crews, self._device = coordinator, crews, device
        self._door = through(coordinator.watches, coordinator.server.handle)
        self._fusion = Fusion(coordinator.server) if coordinator.plan.rounds.fused else None
        self._shelf, self._layout = Shelf(), Layout()
        self._recent: list[dict[int, None]] = [{} for _ in range(len(crews))]  # whom each crew has ready, probably
        # No two servers of a fleet give the same stamp, and so no crew takes an older state for a newer one.
        self._stamps = count(time.time_ns())

    # ------------------------------------------------------------------- what an engine is
    def ask_all(self, turns: Sequence[Turn]) -> Iterable[Message | None]:
        rounds, crosses = self.coordinator.plan.rounds, self.coordinator.plan.protocol.crosses
        if self._fusion is not None:
            return self._together(turns)
        if rounds.waves or rounds.own_bodies or not crosses:
            return self._at_once(turns)
        return map(self._one, turns)

    def evaluate(self, purpose: str) -> list[float]:
        coordinator, found = self.coordinator, list[float]()
        if coordinator.keeps_networks:
            coordinator.progress.refuse_lost_weights(self.keep(0).items())
        what = torch.tensor([PURPOSES.index(purpose), coordinator.progress.epoch])
        own = coordinator.heads_of_their_own()
        for number in range(1 if coordinator.alike else coordinator.plan.clients):
            weights = {} if number in own else coordinator.shown(number)
            order = Message(Kind.EVALUATE, number, coordinator.progress.taken[number], {"what": what, **weights})
            (done,) = self._played(self._given([order], [0]))
            right, all_of_them = done["score"].tolist()
            found += [right / all_of_them] if all_of_them else []
        return found

    def keep(self, number: int) -> State:
        found: State = {}
        for client in self._shelf:
            state = self._shelf.get(client)
            assert state is not None
            found |= {f"client{client}/{name}": t for name, t in state.state(torch.device("cpu")).items()}
        return found

    def rewind(self, number: int, kept: Mapping[str, Tensor]) -> None:
        self._shelf.clear()
        states: dict[int, State] = {}
        for key, tensor in kept.items():
            party, name = key.split("/", 1)
            if party.startswith("client"):
                states.setdefault(int(party.removeprefix("client")), {})[name] = tensor
        for client, state in states.items():
            self._shelf.put(client, next(self._stamps), Asleep.of(state, self._layout))

    # ----------------------------------------------------------------------------- rounds
    def _one(self, turn: Turn) -> Message | None:
        (done,) = self._played(self._given([self.coordinator.order(turn)], [0], learns=True))
        return self._received(turn, done)

    def _received(self, turn: Turn, done: Message) -> Message | None:
        self.coordinator.server.settled(turn.client)
        return self.coordinator.received(turn, done)

    def _at_once(self, turns: Sequence[Turn]) -> list[Message | None]:
        """Each crew plays its turns one after the other; in a wave the body sees their batches in order."""
        waiting = [deque(places) for places in self._by_crew(turns)]
        line = _Line(len(turns)) if self.coordinator.plan.rounds.waves else None
        found: list[tuple[Message, Said] | None] = [None] * len(turns)
        held: dict[int, tuple[_Turns, Said]] = {}  # by place: questions that are not answered yet
        busy: dict[Any, _Turns] = {}

        def begin(crew: int) -> None:
            if waiting[crew]:
                place = waiting[crew].popleft()
                at = self._given([self.coordinator.order(turns[place])], [place], learns=True)
                busy[self._begin(at)] = at

        def answer(at: _Turns, said: Said) -> None:
            busy[self._answer(at, said)] = at

        for crew in range(len(self.crews)):
            begin(crew)
        while busy:
            ticket = self.crews.first(list(busy))
            at = busy.pop(ticket)
            said = self._said(at)
            if said is None:  # it begins anew
                busy[at.ticket] = at
                continue
            (place,) = at.places
            if not said.asks:
                found[place] = frames.decode(bytearray(said.done[0])), said
                begin(at.crew)
            elif line is not None and _goes_forward(said) and not line.may(place):
                held[place] = at, said
                continue
            else:
                answer(at, said)
            if line is not None and (not said.asks or _goes_forward(said)):
                line.passed(place)
                while (after := line.next) in held:
                    answer(*held.pop(after))
                    line.passed(after)
        return [self._in_order(turn, one) for turn, one in zip(turns, found, strict=True)]

    def _in_order(self, turn: Turn, one: tuple[Message, Said] | None) -> Message | None:
        assert one is not None
        self._count_steps(one[1])
        return self._received(turn, one[0])

    def _together(self, turns: Sequence[Turn]) -> list[Message | None]:
        """A fused wave: crews play all their clients side by side, and all are answered at once."""
        parts = [
            self._given([self.coordinator.order(turns[place]) for place in places], places, learns=True)
            for places in self._by_crew(turns)
            if places
        ]
        for at in parts:
            self._begin(at)
        found: list[tuple[Message, Said] | None] = [None] * len(turns)
        while parts:
            said = [self._heard(at) for at in parts]
            for at, one in zip(parts, said, strict=True):
                for place, done in zip(at.places, one.done, strict=False):
                    found[place] = frames.decode(bytearray(done)), one
            asking = [(at, one) for at, one in zip(parts, said, strict=True) if one.asks]
            self._answer_together(asking)
            parts = [at for at, _ in asking]
        said_of = {turn.client: one[1] for turn, one in zip(turns, found, strict=True) if one is not None}
        for turn in turns:  # as one process would have counted: client by client
            for number, terms in said_of[turn.client].steps:
                if number == turn.client:
                    self.coordinator.progress.learnt(terms)
        for said_once in {id(one): one for one in said_of.values()}.values():
            self.coordinator.ledger.samples.update(said_once.samples)
        return [self._received(turn, one[0]) for turn, one in zip(turns, found, strict=True) if one is not None]

    def _answer_together(self, asking: Sequence[tuple[_Turns, Said]]) -> None:
        if not asking:
            return
        assert self._fusion is not None
        asked = {message.client: (message, len(frame)) for _, one in asking for message, frame in _read(one)}
        order = {client: place for at, _ in asking for client, place in zip(_clients(at), at.places, strict=True)}
        in_turn = sorted(asked, key=order.__getitem__)
        kinds = {asked[client][0].kind for client in asked}
        replies: dict[int, bytes] = {}
        error: bytes | None = None
        try:
            if kinds <= set(FUSED):
                answers = self._fusion([asked[client][0].to(self._device) for client in in_turn])
            else:
                answers = [self._door(asked[client][0].to(self._device)) for client in in_turn]
            for client, answer in zip(in_turn, answers, strict=True):
                replies[client] = self._counted(*asked[client], answer)
        except (NonFinite, ProtocolError, ValueError) as raised:
            error = pickle.dumps(raised)
        for at, one in asking:
            own = [replies[message.client] for message, _ in _read(one)] if error is None else error
            self._reply(at, one, own)

    def _by_crew(self, turns: Sequence[Turn]) -> list[list[int]]:
        """Which turns each crew plays: neighbours go to different ones, so that a wave keeps all of them busy."""
        return [
            [place for place, turn in enumerate(turns) if turn.client % len(self.crews) == crew]
            for crew in range(len(self.crews))
        ]

    # --------------------------------------------------------------------- one crew's orders
    def _given(self, orders: list[Message], places: Sequence[int], learns: bool = False) -> _Turns:
        """Orders for the crew that plays these clients. Who does not learn keeps what it has."""
        then = [next(self._stamps) if learns else self._shelf.stamp(order.client) for order in orders]
        keeps = self.coordinator.keeps_networks
        return _Turns(orders[0].client % len(self.crews), orders, then, list(places), keeps)

    def _begin(self, at: _Turns, with_states: bool = False) -> Any:
        orders, recent = [], self._recent[at.crew]
        for order, then in zip(at.orders, at.then, strict=True):
            state = self._shelf.get(order.client) if with_states or order.client not in recent else None
            recent.pop(order.client, None)
            recent[order.client] = None
            if len(recent) > AWAKE:
                del recent[next(iter(recent))]
            stamp = self._shelf.stamp(order.client)
            orders.append(Order(bytes(frames.encode(order)), stamp, then, at.keeps, state))
        at.heard = 0
        at.ticket = self.crews.begin(at.crew, orders)
        return at.ticket

    def _said(self, at: _Turns) -> Said | None:
        """What the crew says next; None where it begins anew, or hears again what it was told before."""
        said = self.crews.said(at.ticket)
        if said is None:
            at.lost += 1
            if at.lost > MOST_LOST:
                raise RuntimeError(f"{at.orders[0]}: {at.lost} crews were lost with it, one after the other")
            if at.kept > MOST_KEPT:
                raise LostCrew(f"{at.orders[0]} was lost with its crew")
            self.crews.replaced(at.crew)
            self._begin(at, with_states=True)
            return None
        if said.lacks:
            self._begin(at, with_states=True)
            return None
        if said.asks and at.heard < len(at.replies):
            asked, reply = at.replies[at.heard]
            if asked != _digest(said):
                raise ProtocolError(f"{at.orders[0]}: played again from its beginning, it says something else")
            at.heard += 1
            at.ticket = self.crews.go_on(at.crew, reply)
            return None
        if said.error is not None:
            self._count_steps(said)
            raise pickle.loads(said.error)
        for order, then, state in zip(at.orders, at.then, said.states, strict=False):
            self._shelf.put(order.client, then, state)
        return said

    def _heard(self, at: _Turns) -> Said:
        while (said := self._said(at)) is None:
            pass
        return said

    def _played(self, at: _Turns) -> list[Message]:
        self._begin(at)
        while (said := self._heard(at)).asks:
            self._answer(at, said)
        self._count_steps(said)
        return [frames.decode(bytearray(one)) for one in said.done]

    def _answer(self, at: _Turns, said: Said) -> Any:
        reply: Sequence[bytes] | bytes
        try:
            reply = [self._counted(m, len(f), self._door(m.to(self._device))) for m, f in _read(said)]
        except (NonFinite, ProtocolError, ValueError) as error:  # the client's to hear, as in one process
            reply = pickle.dumps(error)
        return self._reply(at, said, reply)

    def _reply(self, at: _Turns, said: Said, reply: Sequence[bytes] | bytes) -> Any:
        if at.kept <= MOST_KEPT:
            at.kept += len(reply) if isinstance(reply, bytes) else sum(map(len, reply))
            at.replies = [*at.replies, (_digest(said), reply)] if at.kept <= MOST_KEPT else []
        at.heard = len(at.replies)
        at.ticket = self.crews.go_on(at.crew, reply)
        return at.ticket

    def _counted(self, message: Message, size: int, answer: Message) -> bytes:
        frame = bytes(frames.encode(answer))
        self.coordinator.ledger.note(message, UP, size)
        self.coordinator.ledger.note(answer, DOWN, len(frame))
        return frame

    def _count_steps(self, said: Said) -> None:
        for _, terms in said.steps:
            self.coordinator.progress.learnt(terms)
        self.coordinator.ledger.samples.update(said.samples)


class _Line:
    """Who may go forward in a wave: each after all before it have."""

    def __init__(self, length: int):
        self._done, self.next, self._length = set[int](), 0, length

    def may(self, place: int) -> bool:
        return place <= self.next

    def passed(self, place: int) -> None:
        self._done.add(place)
        while self.next in self._done:
            self.next += 1


def _read(said: Said) -> Iterator[tuple[Message, bytes]]:
    for frame in said.asks:
        yield frames.decode(bytearray(frame)), frame


def _goes_forward(said: Said) -> bool:
    return any(message.kind in (Kind.FORWARD, Kind.LOSS) for message, _ in _read(said))


def _clients(at: _Turns) -> list[int]:
    return [order.client for order in at.orders]


def _digest(said: Said) -> bytes:
    found = sha256()
    for frame in said.asks:
        found.update(frame)
    return found.digest()
