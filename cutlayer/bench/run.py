"""Speed as ratios: our way against the plain way, alternating step by step in one run, so load hits both alike."""

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..attacks import Knowledge, KnownGuard, UnSplit
from ..core.batch import Batch
from ..core.message import Handler, Kind, Message, through
from ..guards import SEAL, Guard, NoGuard, Quantize, every
from ..guards.parts.grouping import mdav, squared_distances
from ..guards.parts.projection import Dense, Fast
from ..nets.base import Net
from ..nets.lenet import LeNet
from ..nets.mnist_net import MnistNet
from ..nets.resnet import ResNet18
from ..nets.simple_cnn import SimpleCNN
from ..training.build import build_client, build_server
from ..training.plan.optimizers import SGD
from ..training.plan.plan import Plan, Task
from ..training.step import learn
from ..wire import frames as wire
from ..wire.ledger import Ledger
from . import clients as bench_clients
from . import decoupler as bench_decoupler
from . import deploy as bench_deploy
from . import gpu as bench_gpu
from . import gpu_audit as bench_gpu_audit
from . import gpu_stream as bench_gpu_stream
from . import leak as bench_leak
from . import link as bench_link
from . import stream as bench_stream
from .measurement import RECORDED, Measured, met

BATCH = 64


def inproc_simplecnn(quick: bool) -> Measured:
    """U-shaped training in process against the same network unsplit: SimpleCNN, 28x28, batch 64."""
    return _in_process(SimpleCNN(depth=2), Task((1, 28, 28), 10), steps=8 if quick else 60, goal=0.98)


def inproc_lenet(quick: bool) -> Measured:
    """U-shaped training in process against the same network unsplit: LeNet, 28x28, batch 64."""
    return _in_process(LeNet(), Task((1, 28, 28), 10), steps=8 if quick else 120, goal=0.96)


def inproc_resnet18(quick: bool) -> Measured:
    """U-shaped training in process against the same network unsplit: ResNet-18, 32x32, batch 64."""
    return _in_process(ResNet18(depth=2), Task((3, 32, 32), 10), steps=3 if quick else 20, goal=1.0)


def project_fast(quick: bool) -> Measured:
    """The structured projection against the dense one: 4096 to 512, batch 64, one thread."""
    return _projections(4096, 512, repeats=3 if quick else 40, goal=8)


def project_fast_wide(quick: bool) -> Measured:
    """The structured projection against the dense one: 16384 to 2048, batch 64, one thread."""
    return _projections(16384, 2048, repeats=2 if quick else 10, goal=16)


def seal_transform(quick: bool) -> Measured:
    """SEAL's transform and mask against a loop over maps: 64 x 64 of 16x16, one thread (loop: a 16th, times 16)."""
    return _seal((64, 16, 16), share=16, repeats=1 if quick else 10, goal=50)


def kanonymous_mdav(quick: bool) -> Measured:
    """KAnonymous's groups against MDAV as the textbook has it: 256 rows of 4096 numbers, k = 5, one thread."""
    return _mdav(256, 4096, 5, repeats=1 if quick else 20)


def unsplit_batched(quick: bool) -> Measured:
    """UnSplit on ten images at once, each with its own clone, against one after the other: MnistNet, one thread."""
    return _unsplit(10, rounds=1 if quick else 4, repeats=1 if quick else 5, goal=5)


def load_cifar10(quick: bool) -> Measured | None:
    """Reading CIFAR-10 in full: seconds, and peak memory over the decoded size (left out without the data)."""
    return _load("CIFAR10()", images=60_000, bytes_each=3 * 32 * 32)


def load_fashionmnist(quick: bool) -> Measured | None:
    """Reading Fashion-MNIST in full: seconds, and peak memory over the decoded size (left out without the data)."""
    return _load("FashionMNIST()", images=70_000, bytes_each=28 * 28)


def codec_cost(quick: bool) -> Measured:
    """Quantising, encoding and decoding the messages of `link.20mbit`, against their step: SimpleCNN, batch 64."""
    return _codec_cost(8 if quick else 60, goal=4)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "inproc.simplecnn": inproc_simplecnn,
    "inproc.lenet": inproc_lenet,
    "inproc.resnet18": inproc_resnet18,
    "project.fast": project_fast,
    "project.fast.wide": project_fast_wide,
    "seal.transform": seal_transform,
    "kanonymous.mdav": kanonymous_mdav,
    "unsplit.batched": unsplit_batched,
    "load.cifar10": load_cifar10,
    "load.fashionmnist": load_fashionmnist,
    **bench_gpu.ENTRIES,
    **bench_gpu_audit.ENTRIES,
    **bench_gpu_stream.ENTRIES,
    **bench_clients.ENTRIES,
    **bench_deploy.ENTRIES,
    **bench_link.ENTRIES,
    **bench_leak.ENTRIES,
    **bench_stream.ENTRIES,
    **bench_decoupler.ENTRIES,
    "codec.cost": codec_cost,
}


def guard_cost(guard: Guard, quick: bool) -> Measured:
    """A guarded training step of SimpleCNN against the unguarded one: what the guard adds, batch 64, one thread."""
    task, rate = Task((1, 28, 28), 10), SGD(lr=0.01)
    batch = Batch(torch.rand(BATCH, *task.shape), torch.randint(task.classes, (BATCH,)), seed=1)
    clients = []
    for used in (guard, NoGuard()):
        plan = Plan(guard=used, client_optimizer=rate, server_optimizer=rate, private_seed=1)
        server = build_server(plan.public(), task)
        clients.append(build_client(plan, task, 0, server.handle))
    ours, plain = _alternate(lambda: learn(clients[0], batch), lambda: learn(clients[1], batch), 8 if quick else 60)
    return Measured(100 * (ours - plain) / ours, "% of a step", plain / ours, "the unguarded step", RECORDED)


ON_A_GPU = ("gpu.", "stream.gpu")  # how the names of entries that need one begin

# One entry a guard, in its usual setting.
for _guard in every():
    _entry = partial(guard_cost, _guard)
    _entry.__doc__ = f"What {_guard} adds to a training step of SimpleCNN, 28x28, batch 64."
    ENTRIES[f"guard.{type(_guard).__name__.lower()}"] = _entry


def chosen(wanted: Sequence[str]) -> list[str]:
    """The names that start with one of `wanted`; all, if none is named."""
    found = [name for name in ENTRIES if not wanted or any(name.startswith(prefix) for prefix in wanted)]
    if not found:
        raise ValueError(f"no benchmark is called {' or '.join(wanted)}; there is {', '.join(ENTRIES)}")
    return found


def run(
    wanted: Sequence[str], *, quick: bool = False, on_entry: Callable[[str, float], None] = lambda name, done: None
) -> list[dict[str, Any]]:
    """The entries whose names start with one of `wanted` (all, if none is named)."""
    rows, names = [], chosen(wanted)
    for place, name in enumerate(names):
        on_entry(name, place / len(names))
        measured = ENTRIES[name](quick)
        if measured is not None:
            found = met(measured.value, measured.ratio, measured.goal)
            rows.append({"name": name, **measured._asdict(), "met": found, "machine": machine(name)})
    return rows


def machine(entry: str) -> str:
    """What an entry was measured on."""
    there = f", {torch.cuda.get_device_name()}" if entry.startswith(ON_A_GPU) and torch.cuda.is_available() else ""
    return f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}{there}"


def _in_process(net: Net, task: Task, *, steps: int, goal: float) -> Measured:
    """Median time of a step, split and unsplit alternating. Weights that differ make the comparison void."""
    rate = SGD(lr=0.01)
    plan = Plan(net=net, client_optimizer=rate, server_optimizer=rate, private_seed=1)
    server = build_server(plan, task)
    # With the ledger in between, as in every run: it looks at each message to count its bytes.
    client = build_client(plan, task, 0, through([Ledger()], server.handle))
    whole = nn.Sequential(net.head(task.shape), net.body(task.shape), net.tail(task.shape, task.classes))
    whole[0].load_state_dict(client.split.head.state_dict())
    whole[1].load_state_dict(server.body.get_submodule("body").state_dict())
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

    split, plain = _alternate(lambda: learn(client, batch, unwatched=True), unsplit, steps)
    same = all(torch.equal(a, b) for a, b in zip(client.split.head.parameters(), whole[0].parameters(), strict=True))
    if not same:
        raise RuntimeError("split and unsplit weights differ: the times cannot be compared")
    return Measured(BATCH / split, "samples/s", plain / split, "the unsplit network", f">= {goal}")


def _codec_cost(repeats: int, *, goal: float) -> Measured:
    """Frames and quantising together; quantising is part of the step, whoever carries its messages."""
    task, rate = Task((1, 28, 28), 10), SGD(lr=0.01)
    plan = bench_link.squeezed(Plan(client_optimizer=rate, server_optimizer=rate, private_seed=1))
    server, crossed = build_server(plan.public(), task), list[Message]()

    def listen(message: Message, handle: Handler) -> Message:
        answer = handle(message)
        crossed.extend((message, answer))
        return answer

    batch = Batch(torch.rand(BATCH, *task.shape), torch.randint(task.classes, (BATCH,)), seed=1)
    learn(build_client(plan, task, 0, through([listen], server.handle)), batch)
    ways = (Quantize(bits=4), plan.compression.answers, *[plan.compression.gradients] * 2)  # z, u, du, dz
    tensors = [tensor for message in crossed for tensor in message.tensors.values()]

    def frames() -> None:
        for message in crossed:
            wire.decode(wire.encode(message))

    def quantise() -> None:
        for way, tensor in zip(ways, tensors, strict=True):
            way.compress(tensor)

    client = build_client(plan, task, 0, server.handle)
    framing, step = _alternate(frames, lambda: learn(client, batch), repeats)
    quantising, _ = _alternate(quantise, lambda: learn(client, batch), repeats)
    ours = framing + quantising
    return Measured(
        100 * ours / step,
        f"% of a step (frames {1e3 * framing:.2f} ms, quantising {1e3 * quantising:.2f} ms)",
        step / ours,
        "quantising and framing all messages of the step",
        f"<= {goal} %",
    )


def _projections(width: int, kept: int, *, repeats: int, goal: float) -> Measured:
    dense, fast = Dense().build(width, kept, 1), Fast().build(width, kept, 1)
    z = torch.randn(BATCH, width)
    ours, theirs = _alternate(lambda: fast.down(z), lambda: dense.down(z), repeats, calls=10)
    return Measured(1e3 * ours, "ms", theirs / ours, "the dense projection", f">= {goal}")


def _seal(shape: tuple[int, int, int], *, share: int, repeats: int, goal: float) -> Measured:
    """The loop does the same to every map, so its time on the first samples is scaled up to the batch."""
    torch.zeros(30 << 18)  # as any training does: once so much was freed, the allocator keeps what it gets
    module = SEAL().build(shape, public=0, private=1)
    z = torch.randn(BATCH, *shape).relu()
    batch, first = Batch(z, torch.zeros(BATCH)), z[: BATCH // share]
    left, right = (buffer for name, buffer in module.named_buffers() if name.endswith((".left", ".right")))
    if not torch.allclose(module(z, batch).seen[: len(first)], _map_by_map(first, left, right, 0.7), atol=1e-4):
        raise RuntimeError("the two ways give different maps: the times cannot be compared")
    ours, theirs = _alternate(lambda: module(z, batch), lambda: _map_by_map(first, left, right, 0.7), repeats)
    return Measured(1e3 * ours, "ms", share * theirs / ours, "the paper's loop over maps", f">= {goal}")


def _map_by_map(z: Tensor, left: Tensor, right: Tensor, energy: float) -> Tensor:
    """SEAL as its Alg. 2 to 4 print it: one map at a time, one coefficient at a time."""
    sent = torch.empty_like(z)
    for place in product(range(len(z)), range(z.shape[1])):
        Z = left @ z[place] @ right.T
        kept = torch.zeros_like(Z)
        if indexes := _indexes(Z.tolist(), energy):
            kept[tuple(zip(*indexes, strict=True))] = 1
        sent[place] = left.T @ (Z * kept) @ right
    return sent


def _indexes(Z: list[list[float]], energy: float) -> list[tuple[int, int]]:
    """Alg. 4: places along the zig-zag until they hold this share of the energy."""
    total = sum(value * value for row in Z for value in row)
    low, i, j, step = 0.0, 0, 0, -1
    indexes = []
    while low < energy * total:
        low += Z[i][j] ** 2
        indexes.append((i, j))
        i, j, step = _traverse(i, j, step, len(Z), len(Z[0]))
    return indexes


def _traverse(i: int, j: int, step: int, height: int, width: int) -> tuple[int, int, int]:
    """Alg. 3: the next place of the zig-zag and the direction after it (-1 is up and right)."""
    if 0 <= i + step < height and 0 <= j - step < width:
        return i + step, j - step, step
    down = j == width - 1 if step < 0 else i < height - 1
    return i + down, j + (not down), -step


def _mdav(count: int, width: int, k: int, *, repeats: int) -> Measured:
    z = torch.randn(count, width).relu()
    if _as_sets(mdav(squared_distances(z), k)) != _as_sets(textbook_mdav(z, k)):
        raise RuntimeError("the two ways give different groups: the times cannot be compared")
    ours, theirs = _alternate(lambda: mdav(squared_distances(z), k), lambda: textbook_mdav(z, k), repeats)
    return Measured(1e3 * ours, "ms", theirs / ours, "textbook MDAV on whole rows", "<= 50 ms")


def textbook_mdav(z: Tensor, k: int) -> list[NDArray[np.int64]]:
    """MDAV word by word (Domingo-Ferrer and Torra 2005): centroids and distances of whole rows in every round."""
    x, left = z.double().numpy(), np.arange(len(z))
    groups = []

    def farthest(point: NDArray[np.float64]) -> int:
        return int(left[np.square(x[left] - point).sum(1).argmax()])

    def take(centre: int) -> None:
        nonlocal left
        order = np.argsort(np.square(x[left] - x[centre]).sum(1), kind="stable")
        groups.append(left[order[:k]])
        left = np.sort(left[order[k:]])

    while len(left) >= 3 * k:
        r = farthest(x[left].mean(0))
        s = farthest(x[r])
        take(r)
        take(s)
    if len(left) >= 2 * k:
        take(farthest(x[left].mean(0)))
    return [*groups, left]


def _as_sets(groups: Sequence[NDArray[np.int64]]) -> set[frozenset[int]]:
    return {frozenset(group.tolist()) for group in groups}


def _unsplit(count: int, *, rounds: int, repeats: int, goal: float) -> Measured:
    task, net, spec = Task((1, 28, 28), 10), MnistNet(), UnSplit(rounds=rounds, clones="own")
    with torch.no_grad():
        z = net.head(task.shape)(torch.rand(count, *task.shape))
    known = Knowledge(task=task, net=net, observed=[], guard=KnownGuard(NoGuard(), tuple(z.shape[1:]), 0, task))

    def guess(rows: Tensor, how: UnSplit) -> Tensor:
        attacker = how.attacker(known.only(how.needs), 0)
        return attacker.reconstruct([Message(Kind.FORWARD, 0, 0, {"z": rows})])

    def one_by_one(rows: Tensor, how: UnSplit) -> Tensor:
        return torch.cat([guess(row[None], how) for row in rows])

    # A few steps in float64: many steps, or stretching a nearly grey image, amplify what was rounded.
    few, exact = UnSplit(rounds=2, input_steps=3, clone_steps=3, clones="own", stretch=False), z.double()
    if not torch.allclose(guess(exact, few), one_by_one(exact, few), atol=1e-6):
        raise RuntimeError("the two ways give different images: the times cannot be compared")
    ours, theirs = _alternate(lambda: guess(z, spec), lambda: one_by_one(z, spec), repeats)
    steps = rounds * (spec.input_steps + spec.clone_steps)
    return Measured(1e3 * ours / steps, "ms a step", theirs / ours, "one image after the other", f">= {goal}")


def _load(source: str, *, images: int, bytes_each: int) -> Measured | None:
    """In a fresh process: this one's memory has peaked before."""
    code = (
        "import time, torch\n"
        "from cutlayer.core.spec import spec\n"
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
