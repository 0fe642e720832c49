"""Small parts for tests: a network of a few hundred weights, random data, and the unsplit twin of a split run."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cutlayer.batch import Batch
from cutlayer.data.base import Parts, Samples
from cutlayer.guards import WCC, Bottleneck1x1, Chain, Guard, LightSplit, NoGuard, Subset
from cutlayer.guards.projection import Dense
from cutlayer.nets.base import Net
from cutlayer.optimizers import SGD
from cutlayer.parties import build_client, build_server
from cutlayer.plan import Plan, Task

SECRET = 0x5EC2_E75E_ED12_3456  # a private seed long enough to be looked for in bytes
TASK = Task((1, 12, 12), 3, {"odd": 2})

# One line per guard: every law over guards runs on these.
GUARDS: list[Guard] = [
    NoGuard(),
    LightSplit(ratio=4),
    LightSplit(ratio=4, projection=Dense()),
    LightSplit(ratio=4, hidden=8),
    WCC(weight=0.17),
    Bottleneck1x1(ratio=2),
    Subset(ratio=4),
    Chain(LightSplit(ratio=4), WCC(weight=0.17)),
    Chain(WCC(weight=0.17), Bottleneck1x1(ratio=2), LightSplit(ratio=2), WCC(weight=0.01)),
]


@dataclass(frozen=True, repr=False)
class TinyNet(Net):
    """conv, BatchNorm, pool | conv, BatchNorm, linear, dropout | linear"""

    dropout: float = 0.0

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3:
            raise ValueError(f"TinyNet reads images; got {shape}")

    def head(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))

    def body(self, shape: tuple[int, ...]) -> nn.Module:
        size = (shape[1] - 2) // 2 - 2
        return nn.Sequential(
            nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * size * size, 7), nn.ReLU(),
            nn.Dropout(self.dropout),
        )  # fmt: skip

    def tail(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(7, classes)


def tiny_plan(**changes: object) -> Plan:
    fields = {
        "net": TinyNet(),
        "client_optimizer": SGD(lr=0.05),
        "server_optimizer": SGD(lr=0.05),
        "private_seed": SECRET,
    }
    return Plan(**{**fields, **changes})


def samples(count: int, seed: int = 0, task: Task = TASK) -> Samples:
    """Clouds with a class-dependent bright corner: learnable, smooth enough to invert, no two alike."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, task.shape[0], 4, 4, generator=draw, dtype=torch.float32) * 0.5
    x = torch.nn.functional.interpolate(coarse, size=task.shape[1:], mode="bilinear")
    y = torch.arange(count) % task.classes
    for label in range(task.classes):
        x[y == label, :, 4 * label : 4 * label + 3, :4] += 0.5
    return Samples(x, y, {"odd": y % 2}, identity=torch.arange(count) // 4)


def tiny_parts(private: int = 48) -> Parts:
    return Parts(samples(private, 1), samples(12, 2), samples(60, 3), samples(30, 4))


def batches(count: int, size: int = 6, seed: int = 0) -> list[Batch]:
    pool = samples(count * size, seed)
    x = pool.x.to(torch.get_default_dtype())
    cuts = [slice(i * size, (i + 1) * size) for i in range(count)]
    return [Batch(x[cut], pool.y[cut], {"odd": pool.s["odd"][cut]}, seed=i) for i, cut in enumerate(cuts)]


class Here:
    """A `Remote` that is not remote: the body is simply called. With it a Split is the unsplit network."""

    def __init__(self, body: nn.Module):
        self._body = body

    def body(self, z: Tensor) -> Tensor:
        return self._body(z)

    def loss(self, z: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
        logits = self._body(z)
        return cross_entropy(logits if rows is None else logits.index_select(0, rows), y)


def split_and_whole(plan: Plan, task: Task = TASK):
    """(client, server) of a split run and the same two, equally initialised, for the unsplit one."""
    server = build_server(plan.public(), task)
    client = build_client(plan, task, 0, server.handle)
    twin_server = build_server(plan.public(), task)
    twin = build_client(plan, task, 0, twin_server.handle)
    return client, server, twin, twin_server


def states(client, server) -> dict[str, Tensor]:
    """Every number that training may change, on both sides."""
    return {
        **{f"client.{name}": t for name, t in client.split.state_dict().items()},
        **{f"server.{name}": t for name, t in server.body.state_dict().items()},
    }


def with_guard(plan: Plan, guard: Guard) -> Plan:
    return replace(plan, guard=guard)
