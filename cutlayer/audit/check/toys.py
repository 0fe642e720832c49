"""What laws are tried on: a network of a few hundred weights, and the unsplit twin of a split run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...core.batch import Batch, Task
from ...core.layout import as_it_arrives
from ...core.message import Message
from ...core.remote import NOTHING
from ...core.seeds import seeded
from ...core.server import Server
from ...core.split import Split
from ...data.base import Parts
from ...nets.base import Net, Shape, normalise
from ...training.build import build_client, build_server
from ...training.laws import TASK, need, toy_batch, toy_samples
from ...training.laws import Skipped as Skipped
from ...training.plan.optimizers import SGD
from ...training.plan.plan import Plan
from ...training.step import ClientNetwork, learn

SECRET = 0x5EC2_E75E_ED12_3456  # a private seed long enough to be looked for in bytes


@dataclass(frozen=True, repr=False)
class ToyNet(Net):
    """Convolution, norm and pool | convolution, norm and linear | linear."""

    norm: str = "batch"

    def check(self, shape: Shape) -> None:
        if len(shape) != 3:
            raise ValueError(f"ToyNet reads images; got {shape}")

    def head(self, shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), normalise(self.norm, 4), nn.ReLU(), nn.MaxPool2d(2))

    def body(self, shape: Shape) -> nn.Module:
        size = (shape[1] - 2) // 2 - 2
        flat = nn.Sequential(nn.Flatten(), nn.Linear(5 * size * size, 7), nn.ReLU())
        return nn.Sequential(nn.Conv2d(4, 5, 3), normalise(self.norm, 5), nn.ReLU(), *flat)

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Linear(7, classes)


def toy_plan(**changes: object) -> Plan:
    fields = {
        "net": ToyNet(),
        "client_optimizer": SGD(lr=0.05),
        "server_optimizer": SGD(lr=0.05),
        "batch_size": 6,
        "epochs": 2,
        "private_seed": SECRET,
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def toy_parts(private: int = 48, seed: int = 0) -> Parts:
    counts = (private, 12, 60, 30)
    private_part, val, aux, test = (toy_samples(count, 10 * seed + place) for place, count in enumerate(counts))
    return Parts(private_part, val, aux, test)


def toy_batches(count: int, size: int, task: Task = TASK) -> list[Batch]:
    if len(task.shape) != 3 or min(task.shape[1:]) < 12:
        return [toy_batch(task, size, seed) for seed in range(count)]
    pool = toy_samples(count * size, 3, task)
    rows = [torch.arange(place * size, (place + 1) * size) for place in range(count)]
    attributes = {name: values for name, values in pool.s.items() if name in task.attributes}
    return [
        Batch(pool.x[one], pool.y[one], {name: values[one] for name, values in attributes.items()}, seed)
        for seed, one in enumerate(rows)
    ]


class _Crossing(torch.autograd.Function):
    """The same numbers, and the same gradient, lying in memory as if they had crossed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return as_it_arrives(tensor).view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        return as_it_arrives(grad)


class Here:
    """A `Remote` that is not remote: the body is simply called. With it a Split is the unsplit network."""

    def __init__(self, body: nn.Module):
        self._body = body

    def body(self, z: Tensor, packed: object = None, beside: Mapping[str, Tensor] = NOTHING) -> Tensor:
        crossed: Tensor = _Crossing.apply(self._body(_Crossing.apply(z), **beside))
        return crossed

    def loss(
        self,
        z: Tensor,
        y: Tensor,
        rows: Tensor | None = None,
        packed: object = None,
        beside: Mapping[str, Tensor] = NOTHING,
    ) -> Tensor:
        logits = self._body(_Crossing.apply(z), **beside)
        return cross_entropy(logits if rows is None else logits.index_select(0, rows), y)


def trained(plan: Plan, task: Task, steps: int) -> tuple[ClientNetwork, Server, list[Message], list[Message]]:
    """Some steps of a split run: both sides afterwards, what went up and what came down."""
    server = build_server(plan.public(), task)
    up: list[Message] = []
    down: list[Message] = []

    def heard(message: Message) -> Message:
        answer = server.handle(message)
        up.append(message)
        down.append(answer)
        return answer

    client = build_client(plan, task, 0, heard)
    for batch in toy_batches(steps, max(6, 2 * plan.guard.least_batch), task):
        learn(client, batch)
    return client, server, up, down


def split_equals_whole(plan: Plan, task: Task, steps: int = 3) -> None:
    """Train split and unsplit from the same start, and compare every number on both sides."""
    client, server, _, _ = trained(plan, task, steps)
    twin_server = build_server(plan.public(), task)
    twin = build_client(plan, task, 0, twin_server.handle)
    before = {name: tensor.clone() for name, tensor in _states(twin.split, twin_server)}
    for batch in toy_batches(steps, max(6, 2 * plan.guard.least_batch), task):
        _learn_whole(twin, twin_server, batch)
    ours, theirs = dict(_states(client.split, server)), dict(_states(twin.split, twin_server))
    differ = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    need(
        not differ,
        f"with {plan.protocol} {', '.join(differ[:3])} differ after {steps} steps: what leaves must be a "
        "tensor of the graph, the server's half must do all that the server does, and random numbers come from seeds",
    )
    moved = any(not torch.equal(ours[name], before[name]) for name in ours)
    need(moved, f"with {plan.protocol} nothing is learnt: no gradient goes through it")


def _states(split: Split, server: Server) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"client.{name}", tensor) for name, tensor in split.state_dict().items())
    yield from ((f"server.{name}", tensor) for name, tensor in server.body.state_dict().items())


def _learn_whole(twin: ClientNetwork, server: Server, batch: Batch) -> None:
    twin.split.train()
    server.body.train()
    with seeded(batch.seed):
        twin.split.loss(batch, Here(server.body)).backward()  # type: ignore[arg-type]
        for optimizer in (twin.optimizer, server.optimizer):
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
