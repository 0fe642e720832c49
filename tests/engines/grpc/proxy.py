"""A relay between clients and a server on the loopback that cuts, stalls, delays, truncates and duplicates."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

FAULTS = ("cut", "close", "stall", "delay", "truncate", "duplicate", "reorder")
# What comes twice or in another order is noticed where records are numbered and signed. Without TLS it would have to
# happen inside of one machine's loopback, and a part of a tensor in the wrong place could pass for a tensor.
SIGNED = ("duplicate", "reorder")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time to linger: closing sends RST


class Relay:
    """Passes bytes on in both directions. After every so many buffers the next fault happens to the one at hand.

    cut        both connections are reset
    close      both connections are closed in good order
    stall      nothing is passed on any more, and nothing closed: a half-open connection
    delay      this direction pauses
    truncate   half of the buffer is passed on, then both are closed
    duplicate  the buffer is passed on twice
    reorder    its second half is passed on before its first
    """

    def __init__(self, target: Callable[[], int | None], faults: Sequence[tuple[str, int]] = ()):
        self.target, self.done = target, Counter[str]()
        self._faults: Iterator[tuple[str, int]] = iter(faults)
        self._counting = threading.Lock()
        self._left: tuple[str, int] | None = next(self._faults, None)
        self._pairs: list[_Pair] = []
        self._over = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(0.2)
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._door.close()
        for pair in list(self._pairs):
            pair.end(reset=True)

    @property
    def exhausted(self) -> bool:
        """Every fault has happened."""
        return self._left is None

    def open(self) -> list["_Pair"]:
        """Connections that live, the oldest first."""
        return [pair for pair in self._pairs if not pair.ended]

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._door.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            port = self.target()
            try:
                server = socket.create_connection(("127.0.0.1", port or 1), timeout=1.0)
            except OSError:
                client.close()  # there is no server at the moment
                continue
            for end in (client, server):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, server)
            self._pairs.append(pair)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(pair, source, sink), daemon=True).start()

    def _pump(self, pair: "_Pair", source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if pair.stalled.is_set():
                    self._over.wait()
                self._pass(pair, sink, data)
        except OSError:
            pass
        pair.end()

    def _pass(self, pair: "_Pair", sink: socket.socket, data: bytes) -> None:
        fault = self._due()
        if fault in ("cut", "close"):
            pair.end(reset=fault == "cut")
        elif fault == "stall":
            pair.stalled.set()
            self._over.wait()
        elif fault == "delay":
            self._over.wait(0.2)
            sink.sendall(data)
        elif fault == "truncate":
            sink.sendall(data[: len(data) // 2])
            pair.end()
        elif fault == "duplicate":
            sink.sendall(data + data)
        elif fault == "reorder":
            sink.sendall(data[len(data) // 2 :] + data[: len(data) // 2])
        else:
            sink.sendall(data)

    def _due(self) -> str | None:
        with self._counting:
            if self._left is None:
                return None
            fault, left = self._left
            if left > 0:
                self._left = (fault, left - 1)
                return None
            self._left = next(self._faults, None)
            self.done[fault] += 1
            return fault


class _Pair:
    """The two connections behind one conversation."""

    def __init__(self, *ends: socket.socket):
        self._ends, self.ended, self.stalled = ends, False, threading.Event()

    def end(self, reset: bool = False) -> None:
        self.ended = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                else:
                    end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()


def faults(kinds: Sequence[str], count: int, seed: int, gap: tuple[int, int] = (12, 70)) -> list[tuple[str, int]]:
    """`count` faults, all kinds in turn in a seeded order, each after a seeded number of buffers."""
    draw = random.Random(seed)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    draw.shuffle(chosen)
    return [(kind, draw.randint(*gap)) for kind in chosen]


def wait_for(condition: Callable[[], object], seconds: float = 20.0, what: str = "it") -> None:
    """Until `condition` holds; an error if it does not come to hold."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)
