"""A split step on a GPU against the plain loop there, both with their data on the device; left out without one."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.seeds import generator
from ..data.holdout import Parts
from ..data.samples import Samples
from ..engines.local.run import LocalRun
from ..guards import LFQ, SEAL, Guard, LightSplit, NoGuard, Quantize
from ..nets.resnet import ResNet18
from ..training.batches import epoch_batches
from ..training.faster import Faster
from ..training.plan.optimizers import SGD
from ..training.plan.plan import Plan
from .measurement import RECORDED, Measured

BATCH, SHAPE, CLASSES = 128, (3, 32, 32), 10
RATE = SGD(lr=0.01)
EXACT = Faster(precision="float32")
PRODUCTS = Faster(precision="float32", im2col=True)  # no TF32 either, other kernels: asked for with --im2col
UNCOUNTED = 2  # epochs that warm up

Epoch = Callable[[], None]


def step(
    guard: Guard,
    quick: bool,
    *,
    eager: bool = False,
    captured_plain: bool = False,
    faster: Faster = EXACT,
    goal: str = RECORDED,
) -> Measured | None:
    """ResNet-18 cut behind its first block, batch 128, ledger on: `train` as a user runs it. Epochs alternate; the
    plain loop has no TF32."""
    if not torch.cuda.is_available():
        return None
    repeats = 3 if quick else 12
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    EXACT.begin()
    try:
        drawn = generator(0)
        count = BATCH * (8 if quick else 32)
        x, y = torch.rand(count, *SHAPE, generator=drawn), torch.randint(CLASSES, (count,), generator=drawn)
        samples = Samples(x, y)
        run = _split(guard, samples, eager, faster, repeats)
        EXACT.begin()
        plain = _captured_loop(samples) if captured_plain else _plain_loop(samples)
        mine, theirs = alternate(run, faster, plain)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    against = "the plain loop" + (", captured as a graph too" if captured_plain else "")
    kind = "captured" if run.captured is not None and run.captured.why_not is None else "eager"
    return Measured(count / mine, f"samples/s ({kind})", theirs / mine, against, goal)


ENTRIES: dict[str, partial[Measured | None]] = {
    "gpu.resnet18": partial(step, NoGuard(), goal=">= 2.0"),
    "gpu.resnet18.eager": partial(step, NoGuard(), eager=True, goal=">= 0.95"),
    "gpu.resnet18.captured": partial(step, NoGuard(), captured_plain=True, goal=">= 0.8"),
    "gpu.resnet18.tf32": partial(step, NoGuard(), faster=Faster(precision="tf32")),
    "gpu.resnet18.bf16": partial(step, NoGuard(), faster=Faster(precision="bf16", channels_last=True)),
    "gpu.resnet18.channels_last": partial(step, NoGuard(), faster=Faster(precision="float32", channels_last=True)),
    "gpu.resnet18.im2col": partial(step, NoGuard(), faster=PRODUCTS, goal=">= 2.0"),
    "gpu.lightsplit": partial(step, LightSplit(ratio=8), goal=">= 1.5"),
    "gpu.quantize": partial(step, Quantize(bits=4), goal=">= 1.5"),
    "gpu.seal": partial(step, SEAL(energy=0.7), goal=">= 1.5"),
    "gpu.lfq": partial(step, LFQ(), goal=">= 1.5"),
    "gpu.lightsplit.im2col": partial(step, LightSplit(ratio=8), faster=PRODUCTS, goal=">= 1.5"),
    "gpu.quantize.im2col": partial(step, Quantize(bits=4), faster=PRODUCTS, goal=">= 1.5"),
    "gpu.seal.im2col": partial(step, SEAL(energy=0.7), faster=PRODUCTS, goal=">= 1.5"),
    "gpu.lfq.im2col": partial(step, LFQ(), faster=PRODUCTS, goal=">= 1.5"),
}


def _told(
    guard: Guard, *, eager: bool = False, captured_plain: bool = False, faster: Faster = EXACT, goal: str = ""
) -> str:
    """An entry in a line, from the arguments of its `step`."""
    ways = [faster.precision] * (faster.precision != "float32")
    ways += ["channels last"] * faster.channels_last + ["im2col"] * faster.im2col + ["no CUDA graph"] * eager
    how = ", ".join([*([] if guard == NoGuard() else [repr(guard)]), *ways])
    against = "the plain loop" + (" as a CUDA graph" if captured_plain else "")
    return f"A split step on a GPU{f' ({how})' if how else ''} against {against}: ResNet-18, batch 128."


for _entry in ENTRIES.values():
    _entry.__doc__ = _told(*_entry.args, **_entry.keywords)


def _split(guard: Guard, samples: Samples, eager: bool, faster: Faster, repeats: int) -> LocalRun:
    plan = Plan(
        net=ResNet18(depth=2), guard=guard, batch_size=BATCH, client_optimizer=RATE, server_optimizer=RATE,
        private_seed=1, epochs=repeats + UNCOUNTED,
    )  # fmt: skip
    none = samples[torch.arange(0)]
    run = LocalRun(plan, Parts(samples, none, none, samples), classes=CLASSES, device="cuda", faster=faster)
    if run.captured is not None and eager:
        run.captured.why_not = "asked for"
    return run


def _whole() -> nn.Module:
    net = ResNet18(depth=2)
    return nn.Sequential(net.head(SHAPE), net.body(SHAPE), net.tail(SHAPE, CLASSES)).cuda().train()


def _plain_loop(samples: Samples) -> Epoch:
    whole, (x, y) = _whole(), (samples.x.cuda(), samples.y.cuda())
    optimizer = RATE.build(whole.parameters())
    assert optimizer is not None

    def epoch() -> None:
        for index in epoch_batches(len(x), BATCH, 0):
            here = index.cuda()
            loss = cross_entropy(whole(x[here]), y[here])
            float(loss.detach())  # both ways look at the loss, as any training loop does
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def _captured_loop(samples: Samples) -> Epoch:
    whole, (x, y) = _whole(), (samples.x.cuda(), samples.y.cuda())
    optimizer = RATE.build(whole.parameters())
    assert optimizer is not None
    images, labels = x[:BATCH].clone(), y[:BATCH].clone()

    def one() -> torch.Tensor:
        loss = cross_entropy(whole(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = one()

    def epoch(held: tuple[object, ...] = (whole, optimizer)) -> None:
        """A graph knows addresses alone: whose they are has to live as long as it does."""
        for index in epoch_batches(len(x), BATCH, 0):
            here = index.cuda()
            images.copy_(x[here])
            labels.copy_(y[here])
            graph.replay()
            float(loss)

    return epoch


def alternate(run: LocalRun, faster: Faster, plain: Epoch) -> tuple[float, float]:
    """Median seconds of an epoch of `run.train()` and of the plain loop, which has its turn between two of them."""
    mine, theirs = list[float](), list[float]()
    began = 0.0

    def until_now(found: list[float]) -> None:
        """All that was launched is over, too."""
        nonlocal began
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        found.append(now - began)
        began = now

    def turn() -> None:
        until_now(mine)
        EXACT.begin()  # set for the whole process, so it is set again when the other way had its turn
        plain()
        until_now(theirs)
        faster.begin()

    faster.begin()
    began = time.perf_counter()
    run.train(on_epoch=turn)
    return median(mine[UNCOUNTED:]), median(theirs[UNCOUNTED:])
