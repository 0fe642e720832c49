"""A client's way to the server: where it is, how it is known, and a conversation that no broken connection ends."""

import contextlib
import ipaddress
import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from ...core.errors import ProtocolError
from ...wire.pieces import Pieces
from . import certs
from .credentials import Credentials
from .handshake import place_of, refuse_unlike
from .limits import QUIET
from .service import CONVERSE, STATUS, transport
from .session import LARGEST, Frame, Refused, Session, Type, head, note, read_note

log = logging.getLogger("cutlayer.join")
Told = TypeVar("Told")
PERSISTENT = ("busy", "internal", "rate", "slow", "window")  # refusals that may pass: try again
OUTDATED = ("expired", "revoked")  # refusals that a renewed certificate mends
RETRY = 5.0  # seconds between two tries to connect, at most
PACKETS = 16  # that lie unread at the client: more wait at the server
SAID = 60.0  # seconds without a word of the server before the client says that it waits; then twice as many
NEXT = 0.3  # seconds between two questions to a server that is away
LINGER = 10.0  # seconds a client that is done waits for a server that is away


class NewSession(Exception):
    """The server does not know our conversation any more: it will say where to go on from."""


class Ending(Exception):
    """This client was asked to end."""


class GaveUp(OSError):
    """No server for too long."""

    exit_code = 4


@dataclass(frozen=True)
class Address:
    """Where the server is, how it is known to be the server, and what is put up with on the way."""

    target: str
    identity: certs.Identity | None = None
    quiet: float = QUIET  # seconds without a byte before the server is asked whether it is still there
    give_up: float = 3600.0  # seconds without a server before it ends
    silence: float = 86400.0  # seconds without a word of a server that is there, before it ends
    message: int = LARGEST  # bytes of one message
    own: Credentials | None = field(default=None, init=False, compare=False, repr=False)  # as they are now

    def __post_init__(self) -> None:
        place_of(self.target)
        if self.identity is None:
            require_loopback(self.target)
        else:
            object.__setattr__(self, "own", Credentials(self.identity, None, log))

    def channel(self) -> grpc.Channel:
        options = [
            *transport(self.quiet),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
        ]
        if self.identity is None:
            return grpc.insecure_channel(self.target, options=options)
        assert self.own is not None
        return grpc.secure_channel(self.target, self.own.of_client(), options=options)


def require_port(listen: str) -> None:
    """gRPC takes a port that there is not for another one."""
    port = listen.rpartition(":")[2]
    if not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError(f"--listen is HOST:PORT, a port from 0 to 65535; got {listen!r}")


def require_loopback(target: str) -> None:
    """Without certificates nobody is who they say they are: only inside one machine."""
    host = target.rsplit(":", 1)[0].strip("[]")
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise ValueError(f"--insecure is for loopback only, not for {host}: make certificates with `cutlayer certs`")


def call(address: Address, method: str, request: bytes, timeout: float) -> bytes:
    """One question, one answer. A server that can never be ours is refused at once; any other is waited for."""
    until = time.monotonic() + timeout
    while True:
        left, hint = max(0.1, until - time.monotonic()), ""
        with address.channel() as channel:
            try:
                return bytes(channel.unary_unary(method)(request, timeout=left))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    hint = refuse_unlike(address.target, address.identity, until - time.monotonic())
                    if time.monotonic() + NEXT < until:
                        time.sleep(NEXT)
                        continue
                why = hint or f"{_why(error)}; is `cutlayer serve` running there?"
                raise GaveUp(f"no answer from {address.target}: {why}") from error


def status(address: Address, timeout: float = 10.0) -> dict[str, Any]:
    """How the run on that server stands."""
    answer = call(address, STATUS, b"", timeout)
    if answer[:2] == b"CP":
        read_note(answer)
    return dict(json.loads(answer))


class ServerChannel:
    """The client's end of the conversation: it reconnects by itself and loses nothing on the way."""

    def __init__(self, address: Address, hello: Callable[[], dict[str, Any]]):
        self._address, self._hello, self.give_up, self.limit = address, hello, address.give_up, address.message
        self._session, self.session_id = Session(self.limit), ""
        self._incoming = Incoming()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel: grpc.Channel | None = None
        self._ending = threading.Event()
        self._shown: certs.Identity | None = None  # the certificate of this connection
        self.connections = 0
        self.connected = False

    def send(self, frame: bytes | bytearray | Pieces) -> None:
        for packet in self._session.send(frame):
            self._outgoing.put(packet)

    def receive(self) -> Frame:
        """The next frame, however many connections it takes."""
        while True:
            self._refuse_ending()
            packet = self._heard() if self._channel is not None else NotConnected()
            try:
                if isinstance(packet, Exception):
                    raise packet
                kind = head(packet)[0]
                if kind is Type.BYE:
                    raise NotConnected
                if kind is Type.REFUSED:
                    read_note(packet)
                frame = self._session.take(packet)
            except NotConnected:
                self._reconnect()
                continue
            except Refused as error:
                if error.name not in PERSISTENT and not self._renewed(error):
                    raise
                self._reconnect()
                continue
            if frame is not None:
                return frame

    def _heard(self) -> bytes | Exception:
        """The next packet. A server that is there and silent is waited for, but not for ever, nor without a word."""
        began, said, patience = time.monotonic(), SAID, self._address.silence
        while True:
            try:
                return self._incoming.get(timeout=max(0.0, began + min(said, patience) - time.monotonic()))
            except queue.Empty:
                pass
            waited = time.monotonic() - began
            if waited >= patience:
                raise GaveUp(
                    f"{self._address.target} is there, but has said nothing for {waited:.0f} s: ask who runs it"
                )
            log.info("waiting", extra={"facts": {"for": self._address.target, "seconds": round(waited)}})
            said *= 2

    def _renewed(self, error: Refused) -> bool:
        """Whether the certificate that is refused is an old one by now."""
        own = self._address.own
        return error.name in OUTDATED and own is not None and own.current() is not self._shown

    def stop(self) -> None:
        """Whoever waits for the server, or is about to, gets `Ending`. Called from a thread of its own."""
        self._ending.set()
        self._incoming.put(Ending())

    def _refuse_ending(self, seconds: float = 0.0) -> None:
        """Wait a little, unless this client ends."""
        if self._ending.is_set() or (seconds and self._ending.wait(seconds)):
            raise Ending

    def open(self) -> None:
        """Connect, if only to see whether the server lets us in."""
        with contextlib.suppress(NewSession):
            self._reconnect()

    def leave(self, patience: float) -> None:
        """Go once the server has heard everything, or has been gone for `patience` seconds."""
        until = time.monotonic() + patience
        with contextlib.suppress(queue.Empty, GaveUp, Refused):
            while self._session.waiting and time.monotonic() < until:
                packet = self._incoming.get(timeout=patience)
                if isinstance(packet, NotConnected):
                    self._reconnect(until - time.monotonic())
                elif isinstance(packet, bytes) and head(packet)[0] is Type.BYE:
                    break
        self.close()

    def close(self) -> None:
        self.connected = False
        self._outgoing.put(None)
        self._incoming.close()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _reconnect(self, patience: float | None = None) -> None:
        """Until the server is back, or for as long as we are patient. Raises NewSession if it has forgotten us."""
        began, wait, given = time.monotonic(), 0.1, patience
        while True:
            patience = self.give_up if given is None else given  # who is asked to end may become impatient
            try:
                welcome = self._connect()
                break
            except NotConnected as error:
                if time.monotonic() - began > patience:
                    raise GaveUp(f"no server at {self._address.target} for {patience:.0f} s: {error}") from None
                log.info("waiting", extra={"facts": {"for": self._address.target, "why": str(error)}})
                self._refuse_ending(wait * random.uniform(0.7, 1.3))
                wait = min(2 * wait, RETRY)
            except Refused as error:
                if error.name not in PERSISTENT or time.monotonic() - began > patience:
                    raise
                self._refuse_ending(wait * random.uniform(0.7, 1.3))
                wait = min(2 * wait, RETRY)
        heard, session = told(welcome, "heard", int), told(welcome, "session", str)
        if session == self.session_id:
            for packet in self._session.again(heard):
                self._outgoing.put(packet)
            return
        self._session, self.session_id = Session(self.limit), session
        raise NewSession

    def _connect(self) -> dict[str, Any]:
        self.close()
        self._session.broken()
        self._incoming, self._outgoing = Incoming(), queue.SimpleQueue()
        facts = {**self._hello(), "session": self.session_id, "heard": self._session.heard}
        self._outgoing.put(note(Type.HELLO, facts))
        own = self._address.own
        self._shown = own.current() if own is not None else None
        self._channel = self._address.channel()
        stream = self._channel.stream_stream(CONVERSE)(_until_none(self._outgoing))
        threading.Thread(target=_pump, args=(stream, self._incoming), daemon=True).start()
        self._refuse_ending()
        try:
            first = self._incoming.get(timeout=30.0)
        except queue.Empty:
            raise NotConnected("no welcome within 30 seconds") from None
        if isinstance(first, Exception):
            raise first
        welcome = read_note(first, Type.WELCOME)
        self.connections += 1
        self.connected = True
        return welcome


class NotConnected(Exception):
    """The connection is gone."""


class Incoming:
    """Packets that have come and were not read yet: a few of them, so that no server fills a client's memory."""

    def __init__(self, most: int = PACKETS):
        self._packets: queue.Queue[bytes | Exception] = queue.Queue(most)
        self._closed = threading.Event()

    def put(self, packet: bytes | Exception) -> bool:
        """Once there is room; False: nobody reads any more."""
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._packets.put(packet, timeout=0.5)
                return True
        return False

    def get(self, timeout: float | None = None) -> bytes | Exception:
        return self._packets.get(timeout=timeout)

    def close(self) -> None:
        self._closed.set()


def _pump(stream: Any, incoming: Incoming) -> None:
    try:
        for packet in stream:
            if not incoming.put(packet):
                return
        incoming.put(NotConnected("the server closed the connection"))
    except grpc.RpcError as error:
        incoming.put(NotConnected(_why(error)))


def _until_none(packets: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (packet := packets.get()) is not None:
        yield packet


def _why(error: Any) -> str:
    code = getattr(error, "code", lambda: None)()
    details = getattr(error, "details", lambda: "")() or ""
    return f"{code.name.lower() if code else error}: {details.splitlines()[0] if details else 'no details'}"


def told(facts: Mapping[str, Any], name: str, kind: type[Told]) -> Told:
    value = facts.get(name)
    if not isinstance(value, kind):
        raise ProtocolError(f"the server's greeting should say {name!r}")
    return value
