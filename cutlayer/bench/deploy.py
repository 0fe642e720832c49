"""Benchmarks of a deployment: what gRPC adds, what crosses the socket, what waiting costs, how full a link is."""

import importlib.util
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.message import Message
from ..nets.base import Net, Shape
from ..nets.mlp import MLP
from ..nets.resnet import ResNet18
from ..nets.simple_cnn import SimpleCNN
from ..training.build import build_server
from ..training.client import Client
from ..training.facts.forecast import Piece as Piece
from ..training.facts.forecast import ideal as ideal
from ..training.facts.forecast import ideal_ahead
from ..training.facts.link import Link
from ..training.own_data import OwnData, Uplink
from ..training.plan.optimizers import SGD
from ..training.plan.plan import Plan
from ..training.plan.schedule import Relay
from ..training.step import export
from ..wire import frames as wire
from ..wire.ledger import Ledger
from .measurement import Measured
from .parties import ECHO, Away, Here, client_address, other_process, read_into, scratch, synthetic

MESSAGE = 1 << 20  # bytes of z and of dz
ANSWER = MESSAGE // 8  # of u and of du: a body makes less of what it gets
MOST_ADDED = 1.5  # times what a bare echo takes: the goal
SLOW = Link(rate=20e6, rtt=0.040)
FEWEST = 3  # steps that warm caches and windows before any is counted
BURST = 6  # steps that are made without a stop, where one begins before another ends


def grpc_step(quick: bool) -> Measured | None:
    """What gRPC adds to a U-shaped step with z of 1 MiB and u of 128 KiB, against a bare gRPC echo of these bytes."""
    return _grpc_step(5 if quick else 60, tls=False)


def grpc_step_tls(quick: bool) -> Measured | None:
    """What gRPC with mutual TLS adds to such a step, against a bare echo with mutual TLS."""
    return _grpc_step(5 if quick else 60, tls=True)


def grpc_train_simplecnn(quick: bool) -> Measured | None:
    """Training between two processes over gRPC against the same split run in one: SimpleCNN, 28x28, batch 64."""
    return _grpc_train(SimpleCNN(depth=2), Task((1, 28, 28), 10), 1 if quick else 12, goal=0.92)


def grpc_train_resnet18(quick: bool) -> Measured | None:
    """Training between two processes over gRPC against the same split run in one: ResNet-18, 32x32, batch 64."""
    return _grpc_train(ResNet18(depth=2), Task((3, 32, 32), 10), 1 if quick else 5, goal=0.97)


def wire_overhead(quick: bool) -> Measured | None:
    """Bytes on the socket of a whole run with mutual TLS, against its frames: z of 1 MiB, u of 128 KiB."""
    return _wire_overhead(5 if quick else 40)


def idle(quick: bool) -> Measured | None:
    """What a server and a client cost while they wait: for another client, and in the middle of a turn."""
    return _idle(0.5 if quick else 10.0)


def pipeline(quick: bool) -> Measured | None:
    """A batch in four pieces over 20 Mbit/s and 40 ms, against the ideal schedule; and against one piece."""
    return _pipeline(2 if quick else 20, SLOW)


def pipeline_ahead(quick: bool) -> Measured | None:
    """`Relay(ahead=1)` over 20 Mbit/s and 40 ms, against its ideal schedule; and against `Relay()`."""
    return _pipeline_ahead(1 if quick else 8, SLOW)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "grpc.step": grpc_step,
    "grpc.step.tls": grpc_step_tls,
    "grpc.train.simplecnn": grpc_train_simplecnn,
    "grpc.train.resnet18": grpc_train_resnet18,
    "wire.overhead": wire_overhead,
    "idle": idle,
    "pipeline": pipeline,
    "pipeline.ahead": pipeline_ahead,
}


def installed() -> bool:
    """Whether this machine can serve and join; without it these benchmarks are left out."""
    return all(importlib.util.find_spec(name) for name in ("grpc", "cryptography"))


@dataclass(frozen=True, repr=False)
class Straight(Net):
    """Nothing but a classifier: z is the input and u an eighth of it, so that a step is its messages."""

    def check(self, shape: Shape) -> None:
        pass

    def head(self, shape: Shape) -> nn.Module:
        return nn.Identity()

    def body(self, shape: Shape) -> nn.Module:
        return _Eighth()

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Linear(shape[0] // 8, classes)


class _Eighth(nn.Module):
    """Means of eight: no gradient is zero, and nothing can be left out on the way."""

    def forward(self, z: Tensor) -> Tensor:
        return z.reshape(len(z), -1, 8).mean(2)


def _straight() -> tuple[Plan, Task]:
    return plan_of(Straight()), Task((MESSAGE // 4 // 64,), 2)


def plan_of(net: Net, **changes: object) -> Plan:
    rate = SGD(lr=0.01)
    fields = {"epochs": 1, "local_steps": 0, "val_share": 0.0, "private_seed": 1}
    return Plan(net=net, client_optimizer=rate, server_optimizer=rate, **{**fields, **changes})  # type: ignore[arg-type]


def rounds_of(ways: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """Median seconds of each way, all of them in every round. By the clock: two processes wait for each other."""
    times = [[way() for way in ways] for _ in range(rounds + FEWEST)][FEWEST:]
    return [median(column) for column in zip(*times, strict=True)]


def _grpc_step(rounds: int, *, tls: bool) -> Measured | None:
    if not installed():
        return None
    plan, task = _straight()
    steps = rounds + FEWEST + 1
    with scratch() as folder, _PlainTcp(MESSAGE, ANSWER) as tcp:
        away, here = Away(plan, task, steps, folder, tls=tls), Here(plan, task, steps)
        with _BareGrpc(MESSAGE, ANSWER, folder / "certs" if tls else None) as bare:
            here.step()
            ours, inside, plain, echo = rounds_of((away.step, here.step, tcp.step, bare.step), rounds)
        away.end()
    _refuse_other_weights(away, here)
    added = ours - inside
    return Measured(
        1e3 * added,
        f"ms a step ({added / echo:.1f} times a bare gRPC echo's {1e3 * echo:.1f}; plain TCP {1e3 * plain:.1f})",
        echo / added,
        "a bare gRPC echo of as many bytes",
        f">= {1 / MOST_ADDED:.3f}",
    )


class _PlainTcp:
    """Two questions and two answers with the other process, of the sizes of a step: what it is to a socket."""

    def __init__(self, up: int, down: int):
        self._large, self._small = bytearray(up), bytearray(down)
        self._socket = socket.create_connection(("127.0.0.1", other_process().ask("echo", up, down)), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "_PlainTcp":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def step(self) -> float:
        began = time.perf_counter()
        self._socket.sendall(self._large)
        read_into(self._socket, self._small)
        self._socket.sendall(self._small)
        read_into(self._socket, self._large)
        return time.perf_counter() - began


class _BareGrpc:
    """The same questions and answers over a gRPC stream, with nothing of ours around it."""

    def __init__(self, up: int, down: int, identities: Path | None):
        address = client_address(other_process().ask("grpc_echo", up, down, identities), identities, "a")
        self._channel, self._asked = address.channel(), queue.SimpleQueue[bytes | None]()
        self._answers = self._channel.stream_stream(ECHO)(iter(self._asked.get, None))
        self._large, self._small = bytes(up), bytes(down)

    def __enter__(self) -> "_BareGrpc":
        return self

    def __exit__(self, *error: object) -> None:
        self._asked.put(None)
        self._channel.close()

    def step(self) -> float:
        began = time.perf_counter()
        for question in (self._large, self._small):
            self._asked.put(question)
            next(self._answers)
        return time.perf_counter() - began


def _grpc_train(net: Net, task: Task, bursts: int, goal: float) -> Measured | None:
    """Steps without a stop between them: what a server does after an answer is part of the next step, or hidden."""
    if not installed():
        return None
    plan, steps = plan_of(net), (bursts + 1) * BURST + 1
    with scratch() as folder:
        away, here = Away(plan, task, steps, folder), Here(plan, task, steps)
        here.step()
        found: tuple[list[float], list[float]] = [], []
        for _ in range(bursts + 1):
            for times, steps_of in zip(found, (away.steps, here.steps), strict=True):
                times += steps_of(BURST)[1:]  # before the first of a burst there was a stop
        away.end()
    _refuse_other_weights(away, here)
    ours, inside = (median(times[BURST - 1 :]) for times in found)
    return Measured(plan.batch_size / ours, "samples/s", inside / ours, "the split run in one process", f">= {goal}")


def _refuse_other_weights(away: Away, here: Here) -> None:
    one, other = away.state(), export(here.run.networks[0])
    if not all(torch.equal(one[name], other[name]) for name in other):
        raise RuntimeError("the weights of the two runs differ: the times cannot be compared")


def _wire_overhead(steps: int) -> Measured | None:
    if not installed():
        return None
    plan, task = _straight()
    with scratch() as folder:
        away = Away(plan, task, steps, folder, tls=True, link=Link())
        away.end()
        assert away.relay is not None
        up, down, connections = away.relay.ask("counts")
        away.relay.close()
    over = (up + down - 4096 * connections) / away.frames
    return Measured(
        100 * (over - 1),
        f"% above the frames, beside 4 KiB for each of {connections} connections",
        (up + down) / away.frames,
        "the encoded frames (bytes)",
        "<= 0.3 %",
    )


def _idle(seconds: float) -> Measured | None:
    if not installed():
        return None
    used = [_waiting_for_another(seconds), _in_a_turn(seconds)]
    worst = max(max(pair) for pair in used)
    return Measured(worst, "cores, the worst of both sides", 0.01 / max(worst, 1e-9), "a hundredth of a core", ">= 1")


def _waiting_for_another(seconds: float) -> tuple[float, float]:
    """A run of two clients, one of which never comes."""
    from ..engines.grpc.client import DeployedClient

    plan, task = replace(_straight()[0], clients=2), _straight()[1]
    server = other_process()
    with scratch() as folder:
        port = server.ask("serve", plan, ["a", "b"], folder / "server", None)
        site = DeployedClient(plan, "a", client_address(port, None, "a"), folder / "a")
        site.prepare(site.enrol(), task, synthetic(plan, task, 1), own_data=True)
        site.channel.give_up = 0.0  # once the server is gone
        thread = threading.Thread(target=_until_it_ends, args=(site.run,), daemon=True)
        thread.start()
        found = _cores(seconds)
        server.ask("stop", port, 0.0)
        thread.join(30)
    return found


def _in_a_turn(seconds: float) -> tuple[float, float]:
    """The server waits for a client in the middle of a turn, and the client for whatever."""
    plan, task = _straight()
    with scratch() as folder:
        away = Away(plan, task, 2, folder)
        found = _cores(seconds)
        away.end()
    return found


def _until_it_ends(run: Callable[[], object]) -> None:
    from ..engines.grpc.channel import GaveUp

    with suppress(GaveUp):
        run()


def _cores(seconds: float) -> tuple[float, float]:
    """CPU seconds a second: the other process, and this one."""
    time.sleep(min(1.0, seconds))  # whatever was started has settled
    theirs, ours, began = other_process().ask("cpu"), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    ours = time.process_time() - ours
    theirs = other_process().ask("cpu") - theirs
    took = time.perf_counter() - began
    return theirs / took, ours / took


# ------------------------------------------------------------------------------- slow links
class Staged:
    """A step in this process taken apart: how long each stage of its pieces computes, and what would have crossed."""

    def __init__(self, plan: Plan, task: Task, steps: int):
        server = build_server(plan.public(), task)
        self._handle, self._count = server.handle, plan.micro_batches
        samples = synthetic(plan, task, steps).private
        uplink = Uplink(lambda message: self._post(message)(), Ledger(), self._post)
        self._client = Client(plan, task, 0, OwnData(samples, {}), uplink)
        self._marks: list[tuple[float, float, int, int]] = []  # a question: began, ended, bytes asked, answered
        self._next, self._stood = 0, 0.0
        self.found: list[list[Piece]] = []

    def step(self) -> float:
        self._marks, began = [], self._clock()
        self._client.learn(0, self._next, self._next + 1)
        self._next += 1
        ended = self._clock()
        asked, count = self._marks, self._count
        if len(asked) != 2 * count:
            raise RuntimeError(f"{len(asked)} messages of a batch in {count} pieces")
        before = [began, *(mark[1] for mark in asked)]
        computed = [mark[0] - last for mark, last in zip(asked, before, strict=False)]
        rest = (ended - before[-1]) / count
        self.found.append(
            [
                Piece(
                    computed[number], first[2], first[1] - first[0], first[3],
                    computed[count + number], second[2], second[1] - second[0], second[3], rest,
                )
                for number, (first, second) in enumerate(zip(asked[:count], asked[count:], strict=True))
            ]
        )  # fmt: skip
        return ended - began

    def stages(self) -> list[Piece]:
        """Of the usual step."""
        kept = self.found[FEWEST:] or self.found
        return [Piece(*map(median, zip(*same, strict=True))) for same in zip(*kept, strict=True)]

    def _post(self, message: Message) -> Callable[[], Message]:
        began = self._clock()
        answer = self._handle(message)
        ended, stopped = self._clock(), time.perf_counter()
        self._marks.append((began, ended, wire.size(message), wire.size(answer)))
        self._stood += time.perf_counter() - stopped
        return lambda: answer

    def _clock(self) -> float:
        """Stands still while sizes are counted."""
        return time.perf_counter() - self._stood


def _pipeline(rounds: int, link: Link) -> Measured | None:
    if not installed():
        return None
    task, steps = Task((784,), 10), rounds + FEWEST + 1
    whole = plan_of(MLP(widths=(1024, 1024)))
    cut = replace(whole, micro_batches=4)
    with scratch() as folder:
        ours = Away(cut, task, steps, folder / "4", link=link)
        plain = Away(whole, task, steps, folder / "1", link=link)
        staged = Staged(cut, task, steps)
        staged.step()
        pieces, one, _ = rounds_of((ours.step, plain.step, staged.step), rounds)
        for away in (ours, plain):
            away.end()
            assert away.relay is not None
            away.relay.close()
    return Measured(
        one / pieces,
        "x the batch in one piece",
        ideal(staged.stages(), link) / pieces,
        "the ideal schedule",
        ">= 0.91",
    )


def _pipeline_ahead(bursts: int, link: Link) -> Measured | None:
    if not installed():
        return None
    task, steps = Task((784,), 10), (bursts + 1) * BURST + 2
    usual = plan_of(MLP(widths=(1024, 1024)))
    with scratch() as folder:
        ours = Away(replace(usual, rounds=Relay(ahead=1)), task, steps, folder / "ahead", link=link)
        plain = Away(usual, task, steps, folder / "usual", link=link)
        staged = Staged(usual, task, steps)
        found: tuple[list[float], list[float]] = [], []
        for _ in range(bursts + 1):
            for times, away in zip(found, (ours, plain), strict=True):
                times += away.steps(BURST)[FEWEST - 1 :]  # the first of a burst has what came during the stop
            staged.step()
        for away in (ours, plain):
            away.end()
            assert away.relay is not None
            away.relay.close()
    ahead, one = (median(times[BURST - FEWEST + 1 :]) for times in found)
    return Measured(
        one / ahead,
        f"x a relay that waits for each gradient ({1e3 * ahead:.0f} ms a step, it takes {1e3 * one:.0f})",
        _cycle(staged.stages()[0], link) / ahead,
        "the ideal schedule",
        ">= 0.91",
    )


def _cycle(one: Piece, link: Link, steps: int = 20) -> float:
    """Seconds that one step more takes."""
    return (ideal_ahead(one, link, 2 * steps) - ideal_ahead(one, link, steps)) / steps
