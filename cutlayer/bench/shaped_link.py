"""A link of a stated rate and round trip between two sockets of one machine."""

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from ..training.facts.link import LARGEST, SMALLEST, Link

_QUEUED = 1 << 16  # bytes that wait in front of the link, beside those on the way


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


class ShapedRelay:
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

    def __enter__(self) -> "ShapedRelay":
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
        size = min(LARGEST, max(SMALLEST, int(min(pace.link.rate, 1e10) / 8e3)))
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


def carry(pipe: Connection, target: tuple[str, int], link: Link) -> None:
    """A relay in a process of its own: tells its port, then its counts whenever asked, until the pipe is closed."""
    with ShapedRelay(target, link) as relay, suppress(EOFError, OSError):
        pipe.send(relay.port)
        while True:
            pipe.recv()
            pipe.send((relay.up, relay.down, relay.connections))
