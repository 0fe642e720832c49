"""What a client would cost a small device: counted and timed on one thread here, and a stated model of an ARM core.

Nothing here was measured on a device. The model has three numbers, all of which can be given: how many operations
a second a core makes, how many watts the board takes while it works, and what a byte costs the radio.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

import torch
from torch import nn

from ..core.batch import Batch, Task, made_up
from ..core.features import features
from ..core.message import Handler, Kind, Message
from ..core.seeds import generator
from ..training.batches import micro_batches
from ..training.build import build_client, build_remote, build_server
from ..training.client import trained
from ..training.facts.memory import ON_TOP, breakdown, client_memory, far_away, made_up_batch, total
from ..training.facts.sides import sides
from ..training.micro_batches import at_once, learn_in_micro_batches
from ..training.plan.plan import Plan
from ..training.plan.shapes import cut_shapes
from ..training.step import ClientNetwork, export, learn, predict
from ..wire import frames

SIDE = 384  # of the matrices whose product says how fast this thread is
REPEATS = 5
MODES = ("learns", "predicts")


@dataclass(frozen=True)
class Core:
    """A small device, as numbers. The defaults are a Cortex-A72 of 1.5 GHz (Raspberry Pi 4): four float32 lanes and
    one fused multiply-add a cycle; a board that takes 5 W at work; 100 nJ a byte over Wi-Fi. Round figures, to be
    replaced by your own."""

    gflops: float = 12.0
    watts: float = 5.0
    nanojoules: float = 100.0

    def __post_init__(self) -> None:
        for name in ("gflops", "watts", "nanojoules"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} of a core is a number above 0, and finite; got {getattr(self, name)!r}")


PI = Core()


def edge(plan: Plan, task: Task, core: Core = PI, repeats: int = REPEATS) -> dict[str, Any]:
    """One client of a plan, per sample: operations, bytes, time on one thread here, and the model of a small core.

    The model scales the time here by how fast this thread multiplies matrices against what the core does at best:
    layers that wait for memory are then guessed too fast where memory is slower than here.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = own_gflops(repeats)
        rows = {name: _mode(plan, task, name, repeats) for name in MODES}
    finally:
        torch.set_num_threads(threads)
    for row in rows.values():
        row["modelled ms"] = row["ms here"] * here / core.gflops
        row["modelled mJ"] = row["modelled ms"] * core.watts + 1e-6 * core.nanojoules * row["bytes"]
    own = sides(plan, task)["client"]
    return {
        "client": own,
        "gflops here": here,
        "core": {"gflops": core.gflops, "watts": core.watts, "nanojoules": core.nanojoules},
        "modes": rows,
        "weights": handed_on(plan, task),
        "exported": exported(plan, task),
    }


def own_gflops(repeats: int = REPEATS) -> float:
    """Multiplications and additions a nanosecond of one thread here, in a product of two matrices."""
    a, b = torch.rand(2, SIDE, SIDE, generator=generator(0))
    return 2 * SIDE**3 / (_seconds(lambda: a @ b, repeats) * 1e9)


def exported(plan: Plan, task: Task) -> dict[str, Any]:
    """The head as a program of torch.export's, and how far what it gives for other inputs is from the head's own."""
    head = build_client(replace(plan, private_seed=0), task, 0, lambda message: message).split.head.eval()
    x = made_up(task, 2, generator(1))
    alone = _Plain(head)
    with torch.no_grad():
        try:
            program = torch.export.export(alone, (x,))
        except Exception as error:  # what a program can hold is torch's business
            return {"works": False, "why": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        # Not the inputs it was made from, which it could have been made for.
        others = [made_up(task, 2, generator(2)), x.flip(0) if task.vocabulary else -x]
        apart = max(float((program.module()(one) - alone(one)).abs().max()) for one in others)
    return {"works": True, "largest difference": apart, "nodes": len(program.graph.nodes)}


def handed_on(plan: Plan, task: Task) -> dict[str, int] | None:
    """Bytes that a turn takes beside its steps, where clients share a head: the weights it begins with, and those it
    ends with. None, where each has its own."""
    if not (plan.hands_on and plan.protocol.learns_together):
        return None
    plan, cut, batch = replace(plan, private_seed=0), cut_shapes(plan, task), made_up_batch(plan, task)
    client = build_client(plan, task, 0, lambda message: message)
    network = ClientNetwork(
        0, client.split, client.optimizer, build_remote(plan, 0, far_away(batch, cut.u, client.split.guard.fan_out))
    )
    correction = plan.rule.correction()
    if correction is not None:
        correction.start(trained(network), {})
    learn(network, batch)  # what the optimizer carries is there after a step
    ends = export(network, optimizer=not plan.rounds.merges)
    if correction is not None:
        ends |= correction.brought(trained(network), 1, plan.client_optimizer.lr)
    ends = dict(sorted(ends.items()))  # frames pad between tensors, so their order counts
    begins = {name: tensor for name, tensor in ends.items() if name.startswith(plan.rule.travels)}
    orders, answers = {"turn": torch.zeros(4).long(), **begins}, {"samples": torch.zeros(1).long(), **ends}
    down, up = (frames.size(Message(Kind.WEIGHTS, 0, 0, tensors)) for tensors in (orders, answers))
    return {"down": down, "up": up, "batches": plan.local_steps}


def lines(found: dict[str, Any]) -> list[str]:
    """For people: a line a mode, and what it rests on."""
    own, core = found["client"], found["core"]
    out = [f"client: {own['parameters']:,} parameters, {own['macs']:,} multiply-accumulates a sample"]
    for name, row in found["modes"].items():
        out.append(
            f"{name:8}  {row['ms here']:8.3f} ms here   {row['modelled ms']:8.3f} ms, {row['modelled mJ']:8.3f} mJ "
            f"modelled   {row['bytes']:10,.0f} bytes   {row['memory'] / 1e6:8.2f} MB   (a sample; memory of a batch)"
        )
    out.append(f"memory    {ON_TOP}")
    out += _about_weights(found["weights"], crosses=any(row["bytes"] for row in found["modes"].values()))
    out.append(
        f"model: one core of {core['gflops']:g} GFLOP/s (this thread: {found['gflops here']:.1f}), "
        f"{core['watts']:g} W, {core['nanojoules']:g} nJ a byte; nothing was measured on a device"
    )
    head = found["exported"]
    same = f"{head.get('nodes')} nodes, outputs differ by {head.get('largest difference', 0):.1g} at most"
    return [*out, f"head by torch.export: {same if head['works'] else head['why']}"]


def _about_weights(weights: dict[str, int] | None, crosses: bool) -> list[str]:
    if weights is None:
        return [] if crosses else ["weights   this plan's clients share none, so nothing crosses"]
    turn = {0: "an epoch", 1: "a batch"}.get(weights["batches"], f"{weights['batches']} batches")
    down, up = weights["down"], weights["up"]
    return [f"weights   {down:,} bytes down and {up:,} up for each turn of {turn}, beside the above"]


def _mode(plan: Plan, task: Task, mode: str, repeats: int) -> dict[str, float]:
    """Time of the client alone, against a server that answers zeros at once; bytes of one step with a real one."""
    plan, cut, batch = replace(plan, private_seed=0), cut_shapes(plan, task), made_up_batch(plan, task)
    learns = mode == "learns"
    client = build_client(plan, task, 0, lambda message: message)
    server = build_server(plan.public(), task)
    counted, answers = _Counted(server.handle), far_away(batch, cut.u, client.split.guard.fan_out)

    def alone(message: Message) -> Message:
        # Where a guard has a half at the server, that is exchanged now and then.
        return server.handle(message) if message.kind is Kind.LIFT else answers(message)

    pieces = [_rows(batch, rows) for rows in micro_batches(plan, torch.arange(len(batch)))]

    def step(send: Handler) -> None:
        network = ClientNetwork(0, client.split, client.optimizer, build_remote(plan, 0, send))
        if learns and plan.micro_batches > 1:
            learn_in_micro_batches(network, pieces, plan.micro_batches - len(pieces), at_once(send))
        elif learns:
            learn(network, batch)
        else:
            with torch.no_grad():
                predict(network, [batch])

    step(counted)
    seconds = _seconds(lambda: step(alone), repeats)
    sizes = breakdown(plan, task)["active"] if learns else client_memory(client, batch, cut.u, "frozen")
    return {"ms here": 1e3 * seconds / len(batch), "bytes": counted.bytes / len(batch), "memory": float(total(sizes))}


def _rows(batch: Batch, rows: torch.Tensor) -> Batch:
    return Batch(batch.x[rows], batch.y[rows], {name: values[rows] for name, values in batch.s.items()}, batch.seed)


class _Counted:
    """A server, and how many bytes went there and back."""

    def __init__(self, handle: Handler):
        self._handle, self.bytes = handle, 0

    def __call__(self, message: Message) -> Message:
        reply = self._handle(message)
        self.bytes += frames.size(message) + frames.size(reply)
        return reply


def _seconds(run: Callable[[], object], repeats: int) -> float:
    run()  # what is made once is made now
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return median(took)


class _Plain(nn.Module):
    """A head that gives its features alone: a program has no place for what is beside them."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return features(self.head(x)).z
