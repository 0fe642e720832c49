"""Benchmarks of many clients: one pass of the body for all, a thousand of them in one process, and frozen ones."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.batch import Task
from ..core.message import Kind, Message
from ..core.seeds import generator
from ..data.base import Parts, Samples
from ..engines.local.run import LocalRun
from ..nets.base import Net
from ..nets.lenet import LeNet
from ..nets.resnet import ResNet18
from ..training.build import build_server
from ..training.fused_wave import Fusion
from ..training.plan.optimizers import SGD
from ..training.plan.plan import Plan
from ..training.plan.schedule import SplitFed, Wave
from ..training.plan.shapes import cut_shapes
from .measurement import Measured

PLAIN = SGD(lr=0.01, momentum=0.0)  # nothing is kept from step to step, so a client is its parameters
DIGITS, IMAGES = Task((1, 28, 28), 10), Task((3, 32, 32), 10)
MANY, FEW = 1000, 10
Way = Callable[[], object]
# So that memory is what is in use: glibc otherwise holds on to freed blocks, as many as their history has it.
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def fusion_b8(quick: bool) -> Measured | None:
    """Eight clients in one pass of the body, batch 8, against one after the other: ResNet-18 with GroupNorm."""
    return _fusion(8, 1 if quick else 3, goal=2.5)


def fusion_b4(quick: bool) -> Measured | None:
    """Eight clients in one pass of the body, batch 4, against one after the other: ResNet-18 with GroupNorm."""
    return _fusion(4, 1 if quick else 3, goal=3.5)


def clients_1000(quick: bool) -> Measured:
    """A sample's time with 1,000 clients that have own heads, against 10 with the same data: LeNet, batch 8."""
    return _against_few(100 if quick else MANY, FEW, passes=1 if quick else 2)


def clients_loop(quick: bool) -> Measured:
    """Clients with own heads against a plain loop over as many networks, each with its optimizer: LeNet, batch 8."""
    return _against_a_loop(100 if quick else MANY, passes=1 if quick else 2)


def clients_idle(quick: bool) -> Measured | None:
    """What a waiting client with its own head needs in memory beyond its parameters: 1,100 against 100 of them."""
    return _idle(100, 200 if quick else 100 + MANY)


def splitfed_memory(quick: bool) -> Measured | None:
    """Peak memory of SplitFed version 1 with 200 clients, against 20 with the same data: SimpleCNN, batch 8."""
    return _splitfed(20, 40 if quick else 200, keeps=False)


def splitfed_memory_momentum(quick: bool) -> Measured | None:
    """Peak memory of SplitFed as in `splitfed.memory`, with each client's momentum kept from round to round."""
    return _splitfed(20, 40 if quick else 200, keeps=True)


def frozen_memory(quick: bool) -> Measured | None:
    """Peak memory of a client that runs forward only, against one that learns: ResNet-18 up to layer1, batch 64."""
    return _frozen(3, steps=2 if quick else 5, rounds=1 if quick else 3)


def frozen_memory_deep(quick: bool) -> Measured | None:
    """Peak memory of a client that runs forward only, against one that learns: ResNet-18 up to layer2, batch 64."""
    return _frozen(4, steps=2 if quick else 5, rounds=1 if quick else 3)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "fusion.b8": fusion_b8,
    "fusion.b4": fusion_b4,
    "clients.1000": clients_1000,
    "clients.1000.loop": clients_loop,
    "clients.1000.idle": clients_idle,
    "splitfed.memory": splitfed_memory,
    "splitfed.memory.momentum": splitfed_memory_momentum,
    "frozen.memory": frozen_memory,
    "frozen.memory.deep": frozen_memory_deep,
}


# ---------------------------------------------------------------------------------- one pass for all
def _fusion(rows: int, rounds: int, goal: float) -> Measured | None:
    """Each way in processes of its own, in turns: what the allocator keeps of one way would serve the other."""
    _refuse_other_gradients(*(way() for way in both_ways(rows)))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for place, spent in enumerate(times):
            found = _in_a_fresh_process(f"usual_time(b.both_ways({rows})[{place}], {2 * rounds})")
            if found is None:
                return None
            spent.append(float(found))
    ours, theirs = map(median, times)
    return Measured(8 * rows / ours, "samples/s of the body", theirs / ours, "one by one", f">= {goal}")


def both_ways(
    rows: int, net: Net | None = None, task: Task = IMAGES, clients: int = 8
) -> list[Callable[[], list[Tensor]]]:
    """Two ways to answer one batch of every client, each with a step of its body; they return every dz."""
    plan = Plan(
        net=net or ResNet18(norm="group"), rounds=Wave(), clients=clients, server_optimizer=PLAIN, private_seed=1
    )
    cut, draw = cut_shapes(plan, task), generator(1)
    z = [torch.randn(rows, *cut.sent, generator=draw) for _ in range(clients)]
    du = [torch.randn(rows, *cut.u, generator=draw) / rows for _ in range(clients)]
    server, whole = build_server(plan.public(), task), build_server(plan.public(), task).body
    fusion, optimizer, step = Fusion(server), PLAIN.build(whole.parameters()), count()
    assert optimizer is not None

    def together() -> list[Tensor]:
        number = next(step)
        fusion([Message(Kind.FORWARD, client, number, {"z": one}) for client, one in enumerate(z)])
        answers = fusion([Message(Kind.BACKWARD, client, number, {"du": one}) for client, one in enumerate(du)])
        return [answer["dz"] for answer in answers]

    def one_by_one() -> list[Tensor]:
        whole.train()
        inputs = [one.clone().requires_grad_() for one in z]
        for one, gradient in zip(inputs, du, strict=True):
            whole(one).backward(gradient / clients)
        optimizer.step()
        optimizer.zero_grad()
        return [one.grad * clients for one in inputs if one.grad is not None]

    return [together, one_by_one]


def usual_time(way: Way, calls: int) -> float:
    """Median seconds of a call. CPU time, so that a busy machine does not decide."""
    spent = []
    for _ in range(calls + 2):
        began = time.process_time()
        way()
        spent.append(time.process_time() - began)
    return median(spent[2:])


def _refuse_other_gradients(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """What goes back to the clients agrees to 1e-6 of its size."""
    for one, other in zip(ours, theirs, strict=True):
        if (one - other).abs().max() > 1e-6 * other.abs().max():
            raise RuntimeError("dz differs between the two ways: the times cannot be compared")


# ------------------------------------------------------------------------------ a thousand in one process
def crowd(clients: int, samples: int, batch: int = 8) -> LocalRun:
    """Clients with heads of their own and a few digits each."""
    plan = Plan(
        net=LeNet(), clients=clients, shared_client_network=False, batch_size=batch, epochs=100, val_share=0.0,
        private_seed=1,
        client_optimizer=PLAIN, server_optimizer=PLAIN,
    )  # fmt: skip
    return LocalRun(plan, _some_digits(samples), classes=DIGITS.classes)


def _some_digits(samples: int) -> Parts:
    """Private ones, and hardly any others."""
    draw = generator(1)

    def some(count: int) -> Samples:
        x = torch.randint(256, (count, *DIGITS.shape), dtype=torch.uint8, generator=draw)
        return Samples(x, torch.randint(DIGITS.classes, (count,), generator=draw))

    return Parts(some(samples), some(2), some(2), some(2))


def rounds_of(run: LocalRun, share: int) -> Callable[[], None]:
    """Each call runs the next rounds, as many as a `share`-th of an epoch has; epoch follows epoch."""

    def forever() -> Any:
        while True:
            yield from run.timetable.rounds(run.progress.epoch)
            run.progress.epoch += 1

    rounds, count = forever(), len(run.timetable.rounds(0)) // share

    def some() -> None:
        for _ in range(count):
            run.take(next(rounds))

    return some


def _against_few(many: int, few: int, passes: int, share: int = 10) -> Measured:
    """By the clock, networks that are built on the way included."""
    samples = 8 * many
    ways = [rounds_of(crowd(clients, samples), share) for clients in (many, few)]
    times: list[list[float]] = [[], []]
    for _ in range(passes * share):
        for way, spent in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            spent.append(time.perf_counter() - began)
    ours, theirs = (sum(spent) / (passes * samples) for spent in times)
    return Measured(1e6 * ours, "us a sample", theirs / ours, f"{few} clients with the same data", ">= 0.67")


def _against_a_loop(clients: int, passes: int, share: int = 10) -> Measured:
    """The loop has all its networks from the start, and counts no bytes."""
    run = crowd(clients, 8 * clients)
    some, loop = rounds_of(run, share), plain_loop(run)
    for _ in range(share):  # every network was built once, as those of the loop were
        some()

    def plain() -> None:
        for _ in range(clients // share):
            next(loop)

    ours, theirs = _alternate(some, plain, passes * share)
    return Measured(1e6 * share * ours / (8 * clients), "us a sample", theirs / ours, "a plain loop", ">= 0.9")


def plain_loop(run: LocalRun) -> Any:
    """As anybody would write it: a network and an optimizer for each client, one body, one batch after the other."""
    net, shape = run.plan.net, run.task.shape
    body = net.body(shape)
    whole = [(net.head(shape), net.tail(shape, run.task.classes)) for _ in run.clients]
    optimizers = [torch.optim.SGD(nn.ModuleList(parts).parameters(), PLAIN.lr) for parts in whole]
    server = torch.optim.SGD(body.parameters(), PLAIN.lr)
    pool, shares = run.parts.private, [client.samples for client in run.clients]
    assert len(pool) == sum(map(len, shares))
    while True:
        for (head, tail), optimizer, samples in zip(whole, optimizers, shares, strict=True):
            for part in (head, body, tail):
                part.train()
            loss = cross_entropy(tail(body(head(samples.images()))), samples.y)
            float(loss.detach())  # both ways look at the loss
            loss.backward()
            for one in (optimizer, server):
                one.step()
                one.zero_grad()
            yield


def _idle(fewer: int, more: int) -> Measured | None:
    """Resident memory of fresh processes that differ in nothing else; all data lies in one pool."""
    sizes = [_in_a_fresh_process(f"waiting({count}, {more})") for count in (fewer, more)]
    if any(size is None for size in sizes):
        return None
    first, second = (float(str(size)) for size in sizes)
    net = LeNet()
    own = sum(
        parameter.numel() * parameter.element_size()
        for part in (net.head(DIGITS.shape), net.tail(DIGITS.shape, DIGITS.classes))
        for parameter in part.parameters()
    )
    beyond = (second - first) / (more - fewer) - own
    return Measured(
        beyond / 1e3,
        f"kB beyond its {own / 1e3:.1f} kB of parameters",
        own / (own + beyond),
        "its parameters alone",
        "<= 5 kB",
    )


def waiting(clients: int, samples: int) -> int:
    """Bytes in memory when each of so many clients has learnt once, and waits."""
    import ctypes
    import gc

    some = rounds_of(run := crowd(clients, 2 * samples), 1)
    some()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is no client's
    assert len(run.clients) == clients
    return resident("VmRSS")


def _splitfed(few: int, many: int, keeps: bool) -> Measured | None:
    sizes = [_in_a_fresh_process(f"merging({count}, {8 * many}, {keeps})") for count in (many, few)]
    if any(size is None for size in sizes):
        return None
    ours, theirs = (float(str(size)) for size in sizes)
    return Measured(ours / 1e6, "MB", ours / theirs, f"{few} clients with the same data (memory)", "<= 1.2")


def merging(clients: int, samples: int, keeps: bool) -> int:
    """Bytes in memory at most, of a process that runs a round of so many clients with a body each, and merges it.

    With `keeps`, optimizers have momentum and keep it for the next round.
    """
    rate = SGD(lr=0.01) if keeps else PLAIN
    plan = Plan(
        clients=clients, rounds=SplitFed(fresh=not keeps), batch_size=8, epochs=1, val_share=0.0, private_seed=1,
        client_optimizer=rate, server_optimizer=rate,
    )  # fmt: skip
    run = LocalRun(plan, _some_digits(samples), classes=DIGITS.classes)
    run.take(run.timetable.rounds(0)[0])
    return resident("VmHWM")


# ---------------------------------------------------------------------------------------- frozen clients
def _frozen(depth: Literal[3, 4], steps: int, rounds: int) -> Measured | None:
    """Usual peaks: the system counts pages in batches, so one process differs from the next by some 100 kB."""
    peaks: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for frozen, found in peaks.items():
            one = _in_a_fresh_process(f"peak({frozen}, {depth}, {steps})", **EXACT)
            if one is None:
                return None
            found.append(float(one))
    ours, theirs = map(median, peaks.values())
    return Measured(
        ours / 1e6,
        f"MB (one that learns: {theirs / 1e6:.1f} MB)",
        ours / theirs,
        "a client that learns (memory)",
        "<= 0.35",
    )


def peak(frozen: bool, depth: Literal[3, 4], steps: int) -> int:
    """Bytes that steps of a client need at most, beyond what was there before; the server is far away."""
    from ..core.batch import Batch
    from ..training.build import build_client
    from ..training.facts.memory import far_away
    from ..training.step import feed, learn

    plan = Plan(net=ResNet18(depth=depth), client_optimizer=SGD(lr=0.01), private_seed=1)
    u, batch = cut_shapes(plan, IMAGES).u, Batch(torch.rand(64, *IMAGES.shape), torch.arange(64) % IMAGES.classes)

    def run(batch: Batch, steps: int) -> None:
        client = build_client(plan, IMAGES, 0, far_away(batch, u))
        for _ in range(steps):
            (feed if frozen else learn)(client, batch)

    run(batch, 2)  # what torch loads, and the kernels it makes for these shapes and keeps, are nobody's
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
    run(batch, steps)
    return resident("VmHWM") - before


def resident(key: str) -> int:
    """Bytes, as the system counts them: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(key))


def _in_a_fresh_process(call: str, **settings: str) -> str | None:
    """What a function of this module prints in a process of its own: this one's memory has peaked before."""
    code = f"import torch; torch.set_num_threads(1); import {__name__} as b; print(b.{call})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **settings}
    )
    return None if done.returncode else done.stdout.strip()


def _alternate(ours: Way, plain: Way, repeats: int) -> tuple[float, float]:
    """Median seconds of a call of each. CPU time, so that a busy machine does not decide."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for way, spent in zip((ours, plain), times, strict=True):
            began = time.process_time()
            way()
            spent.append(time.process_time() - began)
    return median(times[0][1:]), median(times[1][1:])
