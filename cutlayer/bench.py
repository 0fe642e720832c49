"""Speed as ratios: our way against the plain way, alternating step by step in one run, so load hits both alike."""

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .guards.projection import Dense, Fast
from .nets.base import Net
from .nets.resnet import ResNet18
from .nets.simple_cnn import SimpleCNN
from .optimizers import SGD
from .parties import build_client, build_server
from .plan import Plan, Task
from .turn import learn

BATCH = 64


class Measured(NamedTuple):
    """`value` of our way, and `ratio`: how many times the plain way's speed it reaches."""

    value: float
    unit: str
    ratio: float
    baseline: str
    goal: str


def inproc_simplecnn(quick: bool) -> Measured:
    """U-shaped training in process against the same network unsplit: SimpleCNN, 28x28, batch 64."""
    return _in_process(SimpleCNN(depth=2), Task((1, 28, 28), 10), steps=8 if quick else 60, goal=0.97)


def inproc_resnet18(quick: bool) -> Measured:
    """U-shaped training in process against the same network unsplit: ResNet-18, 32x32, batch 64."""
    return _in_process(ResNet18(depth=2), Task((3, 32, 32), 10), steps=3 if quick else 20, goal=0.99)


def project_fast(quick: bool) -> Measured:
    """The structured projection against the dense one: 4096 to 512, batch 64, one thread."""
    return _projections(4096, 512, repeats=3 if quick else 40, goal=8)


def project_fast_wide(quick: bool) -> Measured:
    """The structured projection against the dense one: 16384 to 2048, batch 64, one thread."""
    return _projections(16384, 2048, repeats=2 if quick else 10, goal=16)


def load_cifar10(quick: bool) -> Measured | None:
    """Reading CIFAR-10 in full: seconds, and peak memory over the decoded size (left out without the data)."""
    return _load("CIFAR10()", images=60_000, bytes_each=3 * 32 * 32)


def load_fashionmnist(quick: bool) -> Measured | None:
    """Reading Fashion-MNIST in full: seconds, and peak memory over the decoded size (left out without the data)."""
    return _load("FashionMNIST()", images=70_000, bytes_each=28 * 28)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "inproc.simplecnn": inproc_simplecnn,
    "inproc.resnet18": inproc_resnet18,
    "project.fast": project_fast,
    "project.fast.wide": project_fast_wide,
    "load.cifar10": load_cifar10,
    "load.fashionmnist": load_fashionmnist,
}


def run(
    wanted: Sequence[str], *, quick: bool = False, on_entry: Callable[[str, float], None] = lambda name, done: None
) -> list[dict[str, Any]]:
    """The entries whose names start with one of `wanted` (all, if none is named)."""
    chosen = [name for name in ENTRIES if not wanted or any(name.startswith(prefix) for prefix in wanted)]
    if not chosen:
        raise ValueError(f"no benchmark is called {' or '.join(wanted)}; there is {', '.join(ENTRIES)}")
    rows = []
    for place, name in enumerate(chosen):
        on_entry(name, place / len(chosen))
        measured = ENTRIES[name](quick)
        if measured is not None:
            rows.append({"name": name, **measured._asdict(), "machine": machine()})
    return rows


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


def _in_process(net: Net, task: Task, *, steps: int, goal: float) -> Measured:
    """Median time of a step, split and unsplit alternating. Weights that differ make the comparison void."""
    from .batch import Batch

    rate = SGD(lr=0.01)
    plan = Plan(net=net, client_optimizer=rate, server_optimizer=rate, private_seed=1)
    server = build_server(plan, task)
    client = build_client(plan, task, 0, server.handle)
    whole = nn.Sequential(net.head(task.shape), net.body(task.shape), net.tail(task.shape, task.classes))
    whole[0].load_state_dict(client.split.head.state_dict())
    whole[1].load_state_dict(server.body[-1].state_dict())  # type: ignore[index]
    whole[2].load_state_dict(client.split.tail.state_dict())
    optimizer = rate.build(whole.parameters())
    assert optimizer is not None
    batch = Batch(torch.rand(BATCH, *task.shape), torch.randint(task.classes, (BATCH,)))

    def unsplit() -> None:
        whole.train()
        loss = cross_entropy(whole(batch.x), batch.y)
        float(loss.detach())  # both ways look at the loss, as any training loop does
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    split, plain = _alternate(lambda: learn(client, batch), unsplit, steps)
    same = all(torch.equal(a, b) for a, b in zip(client.split.head.parameters(), whole[0].parameters(), strict=True))
    if not same:
        raise RuntimeError("split and unsplit weights differ: the times cannot be compared")
    return Measured(BATCH / split, "samples/s", plain / split, "the unsplit network", f">= {goal}")


def _projections(width: int, kept: int, *, repeats: int, goal: float) -> Measured:
    dense, fast = Dense().build(width, kept, 1), Fast().build(width, kept, 1)
    z = torch.randn(BATCH, width)
    ours, theirs = _alternate(lambda: fast.down(z), lambda: dense.down(z), repeats, calls=10)
    return Measured(1e3 * ours, "ms", theirs / ours, "the dense projection", f">= {goal}")


def _load(source: str, *, images: int, bytes_each: int) -> Measured | None:
    """In a fresh process: this one's memory has peaked before."""
    code = (
        "import time, torch\n"
        "from cutlayer.spec import spec\n"
        "def memory(key): return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(key))\n"
        f"source = spec({source!r}, 'data')\n"
        "before, began = memory('VmRSS'), time.perf_counter()\n"
        "source.load()\n"
        "print(time.perf_counter() - began, memory('VmHWM') - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    seconds, kilobytes = map(float, done.stdout.split())
    return Measured(
        seconds, "s", 1024 * kilobytes / (images * bytes_each), "the decoded size (memory)", "<= 1.5, <= 10 s"
    )


def _alternate(
    ours: Callable[[], object], plain: Callable[[], object], repeats: int, calls: int = 1
) -> tuple[float, float]:
    """Median seconds of a call of each. CPU time of this process, so that a busy machine does not decide.

    What takes less than a few milliseconds is called several times in a row: after the other way's turn the caches
    hold the other way's data.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 3):
        for way, spent in zip((ours, plain), times, strict=True):
            began = time.process_time()
            for _ in range(calls):
                way()
            if repeat >= 3:  # the first rounds warm caches and allocators
                spent.append((time.process_time() - began) / calls)
    return median(times[0]), median(times[1])
