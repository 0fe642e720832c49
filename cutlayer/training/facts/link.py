"""A slow line on a fast machine: a relay on loopback that lets bytes through no faster than a link would.

Nothing is dropped. Every buffer leaves when the one before it has left and its own bytes have gone out at the link's
rate; it arrives half a round trip later. Whoever sends faster than that has to wait.
"""

import math
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ...core.spec import Spec

__all__ = ["Link", "Pace", "Relay"]

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")
_SMALLEST, _LARGEST = 1500, 1 << 16  # bytes that are read at once: a millisecond of the link, within these
_QUEUED = 1 << 16  # bytes that wait in front of the link, beside those on the way
LONGEST = 60.0  # seconds of a round trip


@dataclass(frozen=True, repr=False)
class Link(Spec):
    """A link between two machines: `rate` in bits a second each way, `rtt` in seconds there and back.

    Where the way down to the client has another rate, it is `down`.
    """

    rate: float = math.inf
    rtt: float = 0.0
    down: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.rate, self.rate if self.down is None else self.down):
            if not _is_number(rate) or not rate > 0:
                raise ValueError(f"the rate of a link is above 0 bits a second; got {rate!r}")
        if not _is_number(self.rtt) or not 0 <= self.rtt <= LONGEST:
            raise ValueError(f"the round trip of a link takes 0 to {LONGEST:.0f} seconds; got {self.rtt!r}")

    @classmethod
    def parse(cls, text: str) -> "Link":
        """`20mbit,40ms`: a rate in bit, kbit, mbit or gbit a second, a round trip in us, ms or s; or one of them.

        `20mbit/100mbit,40ms` has another rate down than up.
        """
        found: dict[str, float] = {}
        for word in text.lower().replace(" ", "").split(","):
            ways = [_NUMBER.fullmatch(way) for way in word.split("/")]
            units = {match[2] if match else "" for match in ways}
            names, sizes = (("rate", "down"), _BITS) if units <= set(_BITS) else (("rtt",), _SECONDS)
            if not units <= set(sizes) or len(ways) > len(names) or names[0] in found:
                raise ValueError(
                    "a link is written like 20mbit,40ms: rate, then round trip; or 20mbit/100mbit,40ms where the way "
                    f"down is another; got {text!r}"
                )
            found |= {name: float(way[1]) * sizes[way[2]] for name, way in zip(names, ways, strict=False) if way}
        return cls(**found)

    def __str__(self) -> str:
        ways = [self.rate] if self.down is None else [self.rate, self.down]
        rate = [] if all(map(math.isinf, ways)) else ["/".join(_with_unit(way, _BITS) for way in ways)]
        return ",".join([*rate, _with_unit(self.rtt, _SECONDS)])

    @property
    def back(self) -> "Link":
        """The same link as the other end has it: what was down is up."""
        return self if self.down is None else Link(self.down, self.rtt, self.rate)

    def seconds(self, count: float) -> float:
        """How long the way up is busy with so many bytes; `back.seconds` is the way down."""
        return 8 * count / self.rate


class Pace:
    """One direction of a link: when each buffer arrives at the other end, first in, first out."""

    def __init__(self, link: Link):
        self.link = link
        self._free = -math.inf  # when the last byte so far has left
        self._lock = threading.Lock()  # all connections share the link

    def arrival(self, now: float, count: int) -> float:
        """A buffer of `count` bytes is handed over at `now`."""
        with self._lock:
            self._free = max(now, self._free) + self.link.seconds(count)
            return self._free + self.link.rtt / 2


class Relay:
    """Listens on loopback, hands every connection on to `target`, and counts what goes through.

    All connections share the link. Use it in a `with`, or close it.
    """

    def __init__(self, target: tuple[str, int], link: Link | None = None):
        self.target, self.link = target, link or Link()
        self.up = self.down = self.connections = 0  # bytes towards the target, bytes back, connections so far
        self._paces = Pace(self.link), Pace(self.link.back)
        self._open: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection at once, and take no more."""
        with self._lock:
            self._closed = True
            ending = [self._listener, *self._open]
        for one in ending:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it; closing alone does not
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self.connections += 1
                self._open |= {near, far}
            if self._closed:
                near.close()
                far.close()
                return
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            directions = (near, far, self._paces[0], self._went_up), (far, near, self._paces[1], self._went_down)
            left = [len(directions)]
            for direction in directions:
                threading.Thread(target=self._carry, args=(*direction, left), name="link", daemon=True).start()

    def _carry(
        self, source: socket.socket, sink: socket.socket, pace: Pace, count: Callable[[int], None], left: list[int]
    ) -> None:
        """One direction until its end. Half a connection may end before the other half."""
        flight = _Flight(round(_QUEUED + pace.link.rtt * min(pace.link.rate, 1e10) / 8))
        threading.Thread(target=_deliver, args=(flight, sink), name="link", daemon=True).start()
        size = min(_LARGEST, max(_SMALLEST, int(min(pace.link.rate, 1e10) / 8e3)))
        data = b"?"
        while data and not flight.landed.is_set():
            try:
                data = source.recv(size)
            except OSError:
                data = b""
            if data:
                count(len(data))
            flight.put(pace.arrival(time.monotonic(), len(data)), data)
        flight.landed.wait()
        if data:  # the other end is gone while this one still sends
            with suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)
        with self._lock:
            left[0] -= 1
            if not left[0]:
                self._open -= {source, sink}
                source.close()
                sink.close()

    def _went_up(self, count: int) -> None:
        with self._lock:
            self.up += count

    def _went_down(self, count: int) -> None:
        with self._lock:
            self.down += count


class _Flight:
    """Buffers on their way, each with its time of arrival. Whoever puts more than `most` bytes waits."""

    def __init__(self, most: int):
        self._most, self._bytes = most, 0
        self._buffers: deque[tuple[float, bytes]] = deque()
        self._news = threading.Condition()
        self.landed = threading.Event()  # nobody takes any more

    def put(self, arrival: float, data: bytes) -> None:
        with self._news:
            self._news.wait_for(lambda: self._bytes <= self._most or self.landed.is_set())
            self._buffers.append((arrival, data))
            self._bytes += len(data)
            self._news.notify_all()

    def take(self) -> bytes:
        """The next buffer, when it arrives."""
        with self._news:
            self._news.wait_for(lambda: bool(self._buffers))
            arrival, data = self._buffers[0]
        time.sleep(max(0.0, arrival - time.monotonic()))
        with self._news:
            self._buffers.popleft()
            self._bytes -= len(data)
            self._news.notify_all()
        return data

    def end(self) -> None:
        self.landed.set()
        with self._news:
            self._news.notify_all()


def _deliver(flight: _Flight, sink: socket.socket) -> None:
    try:
        while data := flight.take():
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # nobody listens any more: the sender is to hear of it
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
    finally:
        flight.end()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_unit(value: float, units: dict[str, float]) -> str:
    unit = ([name for name, size in units.items() if value >= size] or list(units))[-1]
    return f"{value / units[unit]:.10g}{unit}"


def carry(pipe: Connection, target: tuple[str, int], link: Link) -> None:
    """A relay in a process of its own: tells its port, then its counts whenever asked, until the pipe is closed."""
    with Relay(target, link) as relay, suppress(EOFError, OSError):
        pipe.send(relay.port)
        while True:
            pipe.recv()
            pipe.send((relay.up, relay.down, relay.connections))
