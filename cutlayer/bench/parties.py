"""Both sides of a deployment for benchmarks: a server in a process of its own, and a client here, step by step."""

import atexit
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..core.batch import Task
from ..core.seeds import derive
from ..data.base import Parts, Samples
from ..engines.local.run import LocalRun
from ..training.device import prepare
from ..training.facts.link import Link
from ..training.plan.plan import Plan
from ..training.step import export
from ..wire.pieces import Pieces
from .shaped_link import carry

PATIENCE = 120.0  # seconds after which something that should have happened has not


def synthetic(plan: Plan, task: Task, steps: int) -> Parts:
    """Random samples for so many batches, and none to validate or test on."""
    draw = torch.Generator().manual_seed(0)
    count = steps * plan.batch_size
    x = torch.rand(count, *task.shape, generator=draw)
    y = torch.randint(task.classes, (count,), generator=draw)
    none = Samples(x[:0], y[:0])
    return Parts(Samples(x, y), none, none, none)


class Here:
    """The whole run in this process, a step at a time."""

    def __init__(self, plan: Plan, task: Task, steps: int):
        self.run = LocalRun(plan, synthetic(plan, task, steps), classes=task.classes)
        self._next = 0

    def step(self) -> float:
        began = time.perf_counter()
        self.run.clients[0].learn(0, self._next, self._next + 1)
        self._next += 1
        return time.perf_counter() - began

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next steps."""
        return [self.step() for _ in range(count)]


class Away:
    """The same run with its server in another process. Steps are made when asked for."""

    def __init__(
        self, plan: Plan, task: Task, steps: int, folder: Path, *, tls: bool = False, link: Link | None = None
    ):
        from ..engines.grpc.client import DeployedClient

        self._server = other_process()
        identities = make_identities(folder, ["a"]) if tls else None
        port = self.service = self._server.ask("serve", plan, ["a"], folder / "server", identities)
        self.relay = OtherProcess(carry, ("127.0.0.1", port), link) if link is not None else None
        if self.relay is not None:
            port = self.relay.told()
        self.site = DeployedClient(plan, "a", client_address(port, identities, "a"), folder / "a")
        self.frames = 0  # bytes of all frames, both ways
        self._count_frames()
        self._took, self._began = list[float](), time.perf_counter()
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._free, self._errors = False, list[BaseException]()
        number = self.site.enrol()
        parts = synthetic(plan, task, steps)
        (share,) = plan.partition.assign(parts.private, 1, derive(plan.seed, "partition"))
        self.site.prepare(number, task, replace(parts, private=parts.private[share]), own_data=False)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._wait()  # the first step warms up, like its order

    def step(self) -> float:
        """Seconds of the next step."""
        return self.steps(1)[0]

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next steps, between which nobody stops."""
        first = len(self._took)
        self._go.release(count)
        for _ in range(count):
            self._wait()
        return self._took[first : first + count]

    def end(self) -> None:
        """Let the run go to its end."""
        self._free = True
        self._go.release()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise RuntimeError("the run did not end")
        if self._errors:
            raise self._errors[0]
        self._server.ask("stop", self.service, 30.0)

    def state(self) -> Mapping[str, torch.Tensor]:
        """What the client has learnt."""
        assert self.site.party is not None
        return export(self.site.party.network)

    def _wait(self) -> None:
        if not self._done.acquire(timeout=PATIENCE) or self._errors:
            raise RuntimeError("the client of the benchmark failed") from next(iter(self._errors), None)

    def _between(self, epoch: int, steps: int, terms: Mapping[str, float]) -> None:
        self._took.append(time.perf_counter() - self._began)
        self._done.release()
        if not self._free:
            self._go.acquire()
        self._began = time.perf_counter()

    def _work(self) -> None:
        try:
            self.site.run(self._between)
        except BaseException as error:
            self._errors.append(error)
            self._done.release()

    def _count_frames(self) -> None:
        wire = self.site.channel
        send, receive = wire.send, wire.receive

        def counted_send(frame: bytes | bytearray | Pieces) -> None:
            self.frames += len(frame)
            send(frame)

        def counted_receive() -> Any:
            frame = receive()
            self.frames += len(frame)
            return frame

        wire.send, wire.receive = counted_send, counted_receive  # type: ignore[method-assign]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


def make_identities(folder: Path, names: list[str]) -> Path:
    from ..engines.grpc import certs

    certs.make(folder / "certs", ["localhost"], names)
    return folder / "certs"


def client_address(port: int, identities: Path | None, name: str) -> Any:
    from ..engines.grpc import certs
    from ..engines.grpc.channel import Address

    own = certs.read_identity(identities / name, "client") if identities else None
    return Address(f"{'localhost' if own else '127.0.0.1'}:{port}", own, give_up=PATIENCE)


# ----------------------------------------------------------------------------- other processes
class OtherProcess:
    """A process that does as it is asked, and ends with this one."""

    def __init__(self, work: Callable[..., None], *arguments: object):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._lock = threading.Lock()

    def told(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise RuntimeError("the other process of the benchmark does not answer")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the other process of the benchmark has ended") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, *what: object) -> Any:
        with self._lock:
            self._pipe.send(what)
            return self.told()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


@cache
def other_process() -> OtherProcess:
    """One for all benchmarks of this process: to start it takes longer than most of them."""
    made = OtherProcess(_serve_all)
    atexit.register(made.close)
    return made


def _serve_all(pipe: Connection) -> None:
    prepare(1, "cpu")
    servants: dict[str, Callable[..., Any]] = {
        "serve": _serve,
        "stop": _stop,
        "echo": _echo,
        "grpc_echo": _grpc_echo,
        "cpu": time.process_time,
    }
    with suppress(EOFError, OSError):
        while True:
            name, *arguments = pipe.recv()
            try:
                answer: Any = servants[name](*arguments)
            except Exception as error:
                answer = RuntimeError(f"{type(error).__name__}: {error}")
            pipe.send(answer)
    os._exit(0)  # whatever still runs: nobody waits for it


_RUNNING: dict[int, tuple[Any, threading.Thread]] = {}


def _serve(plan: Plan, names: list[str], folder: Path, identities: Path | None) -> int:
    """Start a server; returns its port."""
    from ..core.errors import Interrupted
    from ..engines.grpc.deploy import Service

    identity = identities / "server" if identities else None
    service = Service(plan, names, folder, listen="127.0.0.1:0", identity=identity)

    def work() -> None:
        with suppress(Interrupted):
            service.run()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    _RUNNING[service.network.port] = service, thread
    return service.network.port


def _stop(port: int, patience: float) -> None:
    """Stop a server that has not ended by itself after so many seconds."""
    service, thread = _RUNNING.pop(port)
    thread.join(patience)
    service.stop()
    thread.join(10)


def _echo(up: int, down: int) -> int:
    """Answer `up` bytes with `down` and `down` with `up`, over plain TCP, in turn; returns the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        connection, _ = listener.accept()
        with listener, connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            large, small = bytearray(up), bytearray(down)
            while read_into(connection, large):
                connection.sendall(small)
                read_into(connection, small)
                connection.sendall(large)

    threading.Thread(target=work, daemon=True).start()
    return int(listener.getsockname()[1])


ECHO = "/echo/step"


def _grpc_echo(up: int, down: int, identities: Path | None) -> int:
    """The same over gRPC, with nothing of ours around it; returns the port."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from ..engines.grpc import certs

    large, small = bytes(up), bytes(down)

    def answers(questions: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for question in questions:
            yield small if len(question) == up else large

    _, service, method = ECHO.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(answers)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    if identities is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        own = certs.read_identity(identities / "server", "server")
        credentials = grpc.ssl_server_credentials([(own.key, own.cert)], own.ca, require_client_auth=True)
        port = server.add_secure_port("localhost:0", credentials)
    server.start()
    _ECHOES.append(server)
    return int(port)


_ECHOES: list[Any] = []  # kept: a server that nobody holds on to ends


def read_into(connection: socket.socket, buffer: bytearray) -> bool:
    """Fill the buffer; False when the other side has ended."""
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True
