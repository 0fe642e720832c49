"""gRPC on the server's side: who may enter, bytes in and out of connections. It knows nothing of their meaning."""

import asyncio
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from . import certs
from .admission import Admission
from .connection import ClientConnection, Push
from .credentials import Credentials, Expiry
from .listening import own_port
from .outlet import Outlet
from .session import CHUNK, HEADER, Refused, Type, note, read_note

CONVERSE, ENROLL, STATUS = "/cutlayer.Cut/Converse", "/cutlayer.Cut/Enroll", "/cutlayer.Cut/Status"
FAREWELL = 5.0  # seconds to take in why a connection ends
IDLE_MS = 60_000  # a connection without a conversation is closed
TOLD = 2000  # characters of an error that are sent or logged,
SAID = 300  # and of a refusal in the log
NAMES = 4096  # names whose connections are counted at a time
CONNECTIONS = (30, 10.0)  # a client may connect so many times in so many seconds
PENALTY = 1.0  # seconds that who calls too often waits for its refusal
STREAMS = 8  # calls that one connection may have open: more of them wait at the caller
SILENT = 4  # connections of one certificate that have not said anything yet
LOOK = 3600.0  # seconds between two looks at how long the server's own certificate holds
SPARE = 64  # calls beside those of the clients, for whoever is to be refused

log = logging.getLogger("cutlayer.serve")


def transport(quiet: float) -> list[tuple[str, int]]:
    """Settings of a channel, alike on both sides. A side that does not answer `quiet` seconds of silence is gone."""
    return [
        ("grpc.enable_http_proxy", 0),  # a proxy of the environment would see everything
        ("grpc.keepalive_time_ms", int(1000 * quiet)),
        ("grpc.keepalive_timeout_ms", int(500 * quiet)),
        ("grpc.http2.ping_timeout_ms", int(500 * quiet)),  # of any ping: while one is out, keep-alive sends none
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(250 * quiet)),
        ("grpc.max_receive_message_length", CHUNK + HEADER.size),
        ("grpc.max_send_message_length", CHUNK + HEADER.size),
    ]


class Network:
    """A gRPC server in a thread of its own."""

    def __init__(
        self,
        listen: str,
        admission: Admission,
        status: Callable[[], dict[str, Any]],
        *,
        identity: certs.Identity | None,
        revoked: certs.Revoked | None,
    ):
        self.refused: Counter[str] = Counter()
        self._listen, self._identity, self._revoked = listen, identity, revoked
        self._admission, self._limits, self._status = admission, admission.limits, status
        self._came: dict[str, deque[float]] = {}
        self.expiry = Expiry(log)
        self._silent: Counter[str] = Counter()  # connections whose greeting has not come, by name
        self._loop = asyncio.new_event_loop()
        self._ready: threading.Event = threading.Event()
        self._failed: BaseException | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def stop(self, grace: float = 1.0) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(grace), self._loop).result(grace + 5)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._open())
        except BaseException as error:  # whoever starts us must hear of it
            self._failed = error
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()

    async def _open(self) -> None:
        options = [
            *transport(self._limits.quiet),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", STREAMS),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: what is unpacked could be of any size
        ]
        most = (2 + SILENT) * self._admission.plan.clients + self._limits.visitors + SPARE
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most)
        methods = {
            "Converse": grpc.stream_stream_rpc_method_handler(self._converse),
            "Enroll": grpc.unary_unary_rpc_method_handler(self._enroll),
            "Status": grpc.unary_unary_rpc_method_handler(self._tell),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cutlayer.Cut", methods),))
        listen = own_port(self._listen)
        try:
            if self._identity is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self._own = Credentials(self._identity, "server", log)
                self.port = self._server.add_secure_port(listen, self._own.of_server())
                self._watch = asyncio.ensure_future(self._watch_certificates(self._own))
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {self._listen}: the port is taken, or it is no address of ours"
            ) from error
        await self._server.start()

    async def _watch_certificates(self, own: Credentials) -> None:
        while True:
            self.expiry.own(own.current(), "server")
            await asyncio.sleep(LOOK)

    # ---------------------------------------------------------------------- calls
    async def _tell(self, request: bytes, context: Any) -> bytes:
        try:
            with _named():
                self._refuse_calls(context, "status")
                return json.dumps(self._status()).encode()
        except Refused as error:
            await self._slow_down(error)
            return self._refusal(error, context)

    async def _enroll(self, request: bytes, context: Any) -> bytes:
        try:
            with _named():
                self._refuse_calls(context, "enrolment")
                facts = read_note(request, Type.HELLO)
                name = self._greeted(context, facts)
                welcome = self._admission.enrol(name, facts)
                said = {"client": name, "plan": self._admission.fingerprint, "from": context.peer()}
                log.info("plan agreed", extra={"facts": said})
                return note(Type.WELCOME, welcome)
        except Refused as error:
            await self._slow_down(error)
            return self._refusal(error, context)

    async def _slow_down(self, error: Refused) -> None:
        """Whoever comes too often is not refused at once: it would come again at once."""
        if error.name == "rate":
            await asyncio.sleep(PENALTY)

    def _refuse_calls(self, context: Any, what: str) -> None:
        name = self._name(context, {"name": "?"}, operators=what == "status")
        if self._identity is not None:
            self._refuse_too_often(f"{name}, {what}")

    def _refuse_at_the_door(self, context: Any) -> str:
        """By its certificate, before anything is read: who may not enter is not waited for."""
        name = self._name(context, {"name": "?"})
        if self._identity is not None:
            self._refuse_too_often(name)
            self._admission.refuse_stranger(name)
            if self._silent[name] >= SILENT:
                raise Refused("busy", f"{SILENT} connections of {name} have not said anything yet")
        return name

    async def _converse(self, requests: Any, context: Any) -> None:
        outgoing: asyncio.Queue[bytes | Refused | None] = asyncio.Queue()
        loop, closing, outlet = self._loop, asyncio.Event(), Outlet(context)

        def push(packets: Sequence[bytes]) -> None:
            for packet in packets:
                loop.call_soon_threadsafe(outgoing.put_nowait, packet)

        def close(error: Refused | None) -> None:
            loop.call_soon_threadsafe(outgoing.put_nowait, error)
            loop.call_soon_threadsafe(closing.set)

        connection = None
        try:
            with _named():
                known = self._refuse_at_the_door(context)
            self._silent[known] += 1
            try:
                first = await asyncio.wait_for(context.read(), self._limits.greeting)
            finally:
                self._silent[known] -= 1
            if first is grpc.aio.EOF:
                return
            with _named():
                facts = read_note(first, Type.HELLO)
                name = self._greeted(context, facts)
                if self._identity is None:
                    self._refuse_too_often(name)
                coming = self._admission.admit(name, facts)
                welcome, again = coming.connect(facts, push, close)
                connection = coming
                self._admission.welcomed(coming)
            self._joined(context, connection, facts)
            await outlet.write(note(Type.WELCOME, welcome))
            await self._carry(connection, push, again, outgoing, closing, context, outlet)
        except TimeoutError:
            slow = Refused("slow", f"no greeting within {self._limits.greeting:.0f} seconds")
            await self._part_with(slow, context, outlet)
        except Refused as error:
            if connection is not None:
                connection.drop()
            await self._slow_down(error)
            await self._part_with(error, context, outlet)
        finally:
            await outlet.close()
            if connection is not None:
                connection.disconnect(push)
                log.info("left", extra={"facts": {"client": connection.name, "what": _purpose(facts)}})

    async def _part_with(self, error: Refused, context: Any, outlet: Outlet) -> None:
        """Why the connection ends. Whoever does not read is not waited for: it finds it closed."""
        await outlet.farewell(self._refusal(error, context), FAREWELL)

    async def _carry(
        self,
        connection: ClientConnection,
        push: Push,
        again: Sequence[bytes],
        outgoing: "asyncio.Queue[Any]",
        closing: asyncio.Event,
        context: Any,
        outlet: Outlet,
    ) -> None:
        """Both directions until one of them ends."""

        async def read() -> None:
            while (packet := await context.read()) is not grpc.aio.EOF:
                with _named():
                    connection.arrive(packet, push)
                while connection.full:
                    await asyncio.sleep(0.01)

        async def review() -> None:
            while True:
                await asyncio.sleep(self._limits.review)
                with _named():
                    self._name(context, {"name": "?"})
                    connection.review()

        async def part() -> None:  # whoever does not read is not waited for
            await closing.wait()
            await asyncio.sleep(FAREWELL)

        async def write() -> None:
            for packet in again:
                await outlet.write(packet)
            while True:
                packet = await outgoing.get()
                if isinstance(packet, Refused):  # said by whoever ended the connection, not by what came in
                    await outlet.write(self._refusal(packet))
                    return
                if packet is None:
                    await outlet.write(note(Type.BYE, {}))
                    return
                await outlet.write(packet)

        tasks = [asyncio.ensure_future(one()) for one in (read, review, part)]
        try:
            done, _ = await asyncio.wait([outlet.speak(write()), *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            outlet.hush()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ----------------------------------------------------------------- who may enter
    def _greeted(self, context: Any, facts: dict[str, Any]) -> str:
        self._limits.versions.refuse(facts)
        return self._name(context, facts)

    def _name(self, context: Any, facts: dict[str, Any], operators: bool = False) -> str:
        """Who this is: the name in the certificate. Without certificates, on loopback only, what it says."""
        claimed = str(facts.get("name", ""))
        if self._identity is None:
            return claimed
        seen = context.auth_context()
        names = seen.get("x509_common_name", [])
        if len(names) != 1:
            raise Refused("certificate", "a certificate with one name is needed")
        pem = seen.get("x509_pem_cert", [b""])[0]
        if certs.ended(pem):  # since the handshake
            raise Refused("expired", f"the certificate of {names[0].decode()} has expired")
        if self._revoked is not None and self._revoked.holds(certs.serial(pem)):
            raise Refused("revoked", f"the certificate of {names[0].decode()} was revoked")
        if not operators and certs.is_operators(pem):
            raise Refused("operator", f"{names[0].decode()} is an operator, who may ask for the status and no more")
        if claimed not in ("?", names[0].decode()):
            own = names[0].decode()
            raise Refused(
                "name",
                f"the certificate is {own}'s, not {claimed}'s: type --as {own}, or --certs with {claimed}'s own",
            )
        return str(names[0].decode())

    def _refuse_too_often(self, name: str) -> None:
        most, seconds = (self._limits.connections, 10.0) if self._limits.connections else CONNECTIONS
        came = self._came.setdefault(name, deque(maxlen=most))
        now = time.monotonic()
        if len(self._came) > NAMES:
            self._came = {one: times for one, times in self._came.items() if times and now - times[-1] < seconds}
            if len(self._came) > NAMES:
                raise Refused("rate", "too many names at a time: wait")
        if len(came) == most and now - came[0] < seconds:
            raise Refused("rate", f"{name} connected {most} times within {seconds:.0f} seconds: wait")
        came.append(now)

    def _joined(self, context: Any, connection: ClientConnection, facts: dict[str, Any]) -> None:
        said = {"client": connection.name, "what": _purpose(facts), "from": context.peer()}
        log.info("joined", extra={"facts": {**said, "plan": self._admission.fingerprint}})
        if self._identity is not None:
            self.expiry.note(connection.name, context.auth_context()["x509_pem_cert"][0])

    def _refusal(self, error: Refused, context: Any = None) -> bytes:
        """What is said to who is refused. With a context it is logged; else whoever refused it has done that."""
        self.refused[error.name] += 1
        if context is not None:
            names = (context.auth_context() or {}).get("x509_common_name", [])
            said = {"client": ", ".join(one.decode(errors="replace") for one in names), "from": context.peer()}
            log.warning("refused", extra={"facts": {**said, "error": error.name, "text": str(error)[:SAID]}})
        return note(Type.REFUSED, {"name": error.name, "text": str(error)[:TOLD]})


def _purpose(facts: dict[str, Any]) -> str:
    return "predict" if facts.get("purpose") == "predict" else "train"


@contextmanager
def _named() -> Iterator[None]:
    """What nobody thought of is a refusal as well; the log says what it was."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        log.error("failed", extra={"facts": {"error": type(error).__name__, "text": str(error)[:TOLD]}})
        raise Refused("internal", "the server failed at this; its log says how") from error
