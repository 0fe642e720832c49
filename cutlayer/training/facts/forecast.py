"""How long training would take over a link: what was computed here, what would have crossed, and when it arrives.

Client, server and both directions of the link each do one thing at a time. A message takes its bytes over the rate
and half a round trip; nobody works ahead but the pieces of a batch, which are in flight at once, and clients whose
plan says so (`Relay(ahead=1)`). What a network adds of its own (TLS, HTTP/2: a few per mille; lost packets) is left
out, and so is encoding (`cutlayer bench codec.cost`).
"""

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.message import Handler, Kind, Message
from ...wire.ledger import DOWN, UP, Ledger
from .link import Link

ORDERS = (Kind.TURN, Kind.WEIGHTS)  # a question of the server's: its answer comes when the turn is over


class Piece(NamedTuple):
    """One piece of a batch: seconds that each side computes, bytes that each message has."""

    head: float
    z: float
    forward: float
    u: float
    tail: float
    du: float
    backward: float
    dz: float
    rest: float


def ideal(pieces: Sequence[Piece], link: Link) -> float:
    """Seconds of a step if nothing but computing and the link took time.

    Client, server and both directions of the link take what comes in the order in which it comes. All pieces are
    there at the start.
    """
    ways = ("client", "up", "server", "down", "client", "up", "server", "down", "client")
    busy = {"up": link.seconds, "down": link.back.seconds}
    free = dict.fromkeys(ways, 0.0)
    waiting = [(0.0, number, 0) for number in range(len(pieces))]
    finished = 0.0
    while waiting:
        ready, number, stage = heapq.heappop(waiting)
        way, amount = ways[stage], pieces[number][stage]
        free[way] = max(ready, free[way]) + (busy[way](amount) if way in busy else amount)
        ready = free[way] + (link.rtt / 2 if way in busy else 0.0)
        finished = max(finished, ready)
        if stage + 1 < len(ways):
            heapq.heappush(waiting, (ready, number, stage + 1))
    return finished


def ideal_ahead(one: Piece, link: Link, steps: int) -> float:
    """Seconds of a turn of so many steps, each begun while the gradient of the one before it is on its way."""
    free = {"up": 0.0, "server": 0.0, "down": 0.0}

    def answered(now: float, asked: float, computed: float, told: float) -> float:
        """When the answer to what leaves now is there."""
        stages = ("up", link.seconds(asked)), ("server", computed), ("down", link.back.seconds(told))
        for way, seconds in stages:
            free[way] = max(now, free[way]) + seconds
            now = free[way] + (0.0 if way == "server" else link.rtt / 2)
        return now

    now = one.head
    u = answered(now, one.z, one.forward, one.u)
    for step in range(steps):
        now = max(now, u) + one.tail
        dz = answered(now, one.du, one.backward, one.dz)
        if step + 1 < steps:
            now += one.head
            u = answered(now, one.z, one.forward, one.u)
        now = max(now, dz) + one.rest
    return now


class Stopwatch:
    """A watcher before the server: seconds of the server, and of the client between an answer and the gradient."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: the first steps are slower than the others."""
        self.server: defaultdict[Kind, float] = defaultdict(float)
        self.count: Counter[Kind] = Counter()
        self.tail = 0.0
        self._left = 0.0

    def __call__(self, message: Message, handle: Handler) -> Message:
        began = time.perf_counter()
        if message.kind is Kind.BACKWARD:
            self.tail += began - self._left
        answer = handle(message)
        self._left = time.perf_counter()
        self.server[message.kind] += self._left - began
        self.count[message.kind] += 1
        return answer

    def piece(self, ledger: Ledger, seconds: float) -> Piece:
        """The usual piece of a batch, where all turns together took so many seconds."""
        asks = Kind.LOSS if self.count[Kind.LOSS] else Kind.FORWARD
        steps = self.count[asks]
        forward, backward = self.server[asks], self.server[Kind.BACKWARD]
        # What is neither the server's nor between two messages: the head, the update and whatever is around them.
        head = max(0.0, seconds - forward - backward - self.tail - self.server[Kind.LIFT])
        return Piece(
            head / steps, _each(ledger, asks, UP), forward / steps, _each(ledger, asks, DOWN),
            self.tail / steps, _each(ledger, Kind.BACKWARD, UP), backward / steps, _each(ledger, Kind.BACKWARD, DOWN),
            0.0,
        )  # fmt: skip


def forecast(
    link: Link, ledger: Ledger, watch: Stopwatch, *, seconds: float, steps: int, per_epoch: int, ahead: int = 0
) -> dict[str, Any] | None:
    """Seconds of a step and of an epoch over this link; None, where nothing was trained here.

    `seconds` are those of the turns that `watch` saw, `steps` all that the ledger has counted (they may be more: a
    resumed run), `per_epoch` how many of them an epoch has, `ahead` how many of a turn are begun one before the
    other is over (`Timetable.ahead`).
    """
    if not steps or not watch.count[Kind.BACKWARD]:
        return None
    pieces = max(1, round(ledger.messages[Kind.BACKWARD.name, UP] / steps))
    one = watch.piece(ledger, seconds)
    orders, lifts = _crossing(ledger, ORDERS, link, steps), _crossing(ledger, (Kind.LIFT,), link, steps)
    compute = pieces * (one.head + one.forward + one.tail + one.backward)
    up = link.seconds(pieces * (one.z + one.du)) + orders.up + lifts.up
    down = link.back.seconds(pieces * (one.u + one.dz)) + orders.down + lifts.down
    rounds = 1 + 1 / ahead if ahead else 2  # trips that a step waits for
    waiting = rounds * link.rtt + orders.waiting + lifts.waiting
    alone = ideal_ahead(one, link, ahead) / ahead if ahead else ideal([one] * pieces, link)
    step = alone + sum(orders) + sum(lifts)
    return {
        "link": str(link),
        "seconds per step": step,
        "seconds per epoch": step * per_epoch,
        "share of communication": max(0.0, 1 - compute / step),
        "step": {"compute": compute, "up": up, "down": down, "waiting": waiting},
        "validation per epoch": sum(_crossing(ledger, (Kind.PREDICT,), link, steps)) * per_epoch,
    }


def in_words(told: dict[str, Any]) -> list[str]:
    """What a person is told of a forecast."""
    step = {name: f"{1e3 * value:.0f}" for name, value in told["step"].items()}
    return [
        f"over {told['link']}: {told['seconds per epoch']:.1f} s an epoch, {1e3 * told['seconds per step']:.0f} ms a "
        f"step, {100 * told['share of communication']:.0f} % of it communication",
        f"a step: {step['compute']} ms computing, {step['up']} ms up, {step['down']} ms down, {step['waiting']} ms "
        "waiting for what is on its way",
    ]


class _Crossing(NamedTuple):
    """Seconds a step."""

    up: float
    down: float
    waiting: float


def _crossing(ledger: Ledger, kinds: Sequence[Kind], link: Link, steps: int) -> _Crossing:
    """What messages that are not a step's own add to each: one after the other, and a round trip for every pair."""
    up, down = (sum(ledger.bytes[kind.name, way] for kind in kinds) / steps for way in (UP, DOWN))
    rounds = sum(ledger.messages[kind.name, UP] for kind in kinds) / steps
    return _Crossing(link.seconds(up), link.back.seconds(down), rounds * link.rtt)


def _each(ledger: Ledger, kind: Kind, way: str) -> float:
    """Bytes of the usual message."""
    return ledger.bytes[kind.name, way] / max(1, ledger.messages[kind.name, way])
