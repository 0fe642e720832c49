"""Small parts for tests: a network of a few hundred weights, random data, and the unsplit twin of a split run."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from cutlayer.audit.check.toys import Here as Here
from cutlayer.core.batch import Batch
from cutlayer.data.base import Parts, Samples
from cutlayer.guards import (
    BF16,
    C3,
    DCT,
    DPSGD,
    DST,
    HEVC,
    JPEG,
    LFQ,
    PCA,
    SEAL,
    WCC,
    Adversarial,
    Bottleneck1x1,
    Chain,
    Clip,
    Disco,
    EntropicStudent,
    FedLite,
    Gate,
    Gaussian,
    Guard,
    Haar,
    KAnonymous,
    Laplace,
    LightSplit,
    NoGuard,
    Noise,
    NoPeek,
    Prism,
    Quantize,
    RandTopK,
    RateBottleneck,
    Shredder,
    SplitFC,
    Subset,
    TopK,
)
from cutlayer.guards.parts.projection import Dense
from cutlayer.nets.base import Net, normalise
from cutlayer.nets.whole import Whole
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan, Task

SECRET = 0x5EC2_E75E_ED12_3456  # a private seed long enough to be looked for in bytes
TASK = Task((1, 12, 12), 3, {"odd": 2})

# One line per guard that reads the maps of TinyNet; those that need another network come below, in ELSEWHERE.
GUARDS: list[Guard] = [
    NoGuard(),
    LightSplit(ratio=4),
    LightSplit(ratio=4, projection=Dense()),
    LightSplit(ratio=4, hidden=8),
    WCC(weight=0.17),
    Bottleneck1x1(ratio=2),
    Subset(ratio=4),
    Clip(norm=2.0),
    Noise(scale=0.1),
    Gaussian(scale=0.1),
    Laplace(scale=0.1),
    Chain(LightSplit(ratio=2), Clip(norm=1.0), Gaussian(epsilon=8)),
    Chain(Clip(norm=3.0, p=1), Laplace(epsilon=50)),
    SEAL(),
    SEAL(energy=0.9, gram="row", wave="triangle"),
    SEAL(fixed=True),
    DCT(energy=0.8),
    DST(energy=0.8),
    Haar(energy=0.8),
    PCA(energy=0.8, rho=0.5),
    Chain(SEAL(), LightSplit(ratio=4)),
    NoPeek(),
    NoPeek(alpha=0.8, squared=True),
    Adversarial(weight=0.5, width=4),
    Adversarial(attribute="odd", width=4),
    Disco(width=4),
    Disco(ratio=0.8, patches=2, attribute="odd", alpha=0.3, width=4),
    Shredder(tensors=3, target=0.2),
    Chain(LightSplit(ratio=4), Adversarial(width=4), NoPeek(alpha=0.2)),
    Prism(keep=0.3, anneal=10),
    Prism(score="channel", threshold="learned", privacy="adversary", attribute="odd", salient="home", rescale=True),
    Prism(score="spatial", threshold="statistical", privacy="adversary", gamma=1.0),
    KAnonymous(k=2),
    KAnonymous(k=2, grouping="random"),
    KAnonymous(k=2, grouping="class"),
    Chain(LightSplit(ratio=4), KAnonymous(k=3)),
    Chain(KAnonymous(k=2), Gaussian(scale=0.1)),
    Quantize(bits=4),
    Quantize(bits=3, rounding="stochastic"),
    Quantize(bits=2, entropy=True),
    Chain(LightSplit(ratio=4), Quantize(bits=4)),
    BF16(),
    Chain(LightSplit(ratio=4), BF16()),
    TopK(share=0.2),
    RandTopK(share=0.2, alpha=0.3),
    Chain(TopK(share=0.2), WCC(weight=0.1)),
    Chain(TopK(share=0.2), Quantize(bits=4)),
    C3(ratio=2),
    C3(ratio=4),
    Chain(LightSplit(ratio=2), C3(ratio=3), Quantize(bits=8)),
    SplitFC(ratio=2, budget=3),
    Chain(LightSplit(ratio=2), SplitFC(ratio=1.5, budget=4, ends=5)),
    FedLite(parts=10, groups=2, centroids=4, weight=0.01),
    Chain(WCC(weight=0.1), FedLite(parts=7, centroids=3, weight=0)),
    # Exchanges change what the other side computes with, so none falls into the steps that are compared.
    LFQ(bits=3, freq=1000),
    LFQ(groups=2, bits=2, quantizers=2, levels="learned", scale="client", freq=1000),
    LFQ(bits=2, depth=2, decoder="client", freq=1000),
    LFQ(bits=3, values=5, coded=True, scale="affine", freq=1000),
    Chain(LFQ(bits=4, stride=1, freq=1000), WCC(weight=0.001)),
    RateBottleneck(channels=3, width=4),
    RateBottleneck(channels=2, stride=1, hyper=0, weight=0.5, per="pixel", width=4),
    Chain(RateBottleneck(channels=4, stride=3, hyper=2, coarse=1, width=4), WCC(weight=0.001)),
    EntropicStudent(channels=3, stage=1000, freq=1000, width=4),
    Gate(numbers=8, bits=2, hidden=8),
    Chain(Gate(numbers=6, bits=1, budget=0, rounding="stochastic", hidden=8, home=0.5), WCC(weight=0.001)),
    Chain(LightSplit(ratio=4), WCC(weight=0.17)),
    Chain(WCC(weight=0.17), Bottleneck1x1(ratio=2), LightSplit(ratio=2), WCC(weight=0.01)),
]


@dataclass(frozen=True, repr=False)
class TinyNet(Net):
    """conv, norm, pool | conv, norm, linear, dropout | linear"""

    dropout: float = 0.0
    norm: str = "batch"

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3:
            raise ValueError(f"TinyNet reads images; got {shape}")

    def head(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), normalise(self.norm, 4), nn.ReLU(), nn.MaxPool2d(2))

    def body(self, shape: tuple[int, ...]) -> nn.Module:
        size = (shape[1] - 2) // 2 - 2
        return nn.Sequential(
            nn.Conv2d(4, 5, 3), normalise(self.norm, 5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * size * size, 7),
            nn.ReLU(), nn.Dropout(self.dropout),
        )  # fmt: skip

    def tail(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(7, classes)


@dataclass(frozen=True, repr=False)
class LinearNet(Net):
    """Linear layers with names, for adapters: query | query | linear"""

    width: int = 12

    def check(self, shape: tuple[int, ...]) -> None:
        pass

    def head(self, shape: tuple[int, ...]) -> nn.Module:
        layers = {"flat": nn.Flatten(), "query": nn.Linear(prod(shape), self.width), "relu": nn.ReLU()}
        return nn.Sequential(OrderedDict(layers))

    def body(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(OrderedDict({"query": nn.Linear(self.width, self.width), "relu": nn.ReLU()}))

    def tail(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(self.width, classes)


# Guards that need another network than TinyNet as it is, and that network.
ELSEWHERE: dict[Guard, Net] = {
    DPSGD(clip=0.5, noise=0.3): TinyNet(norm="group"),  # statistics of a batch would mix samples
    JPEG(quality=60): Whole(net=TinyNet()),  # pictures are coded at the input
    HEVC(quality=60): Whole(net=TinyNet()),
}
ALL_GUARDS = [*GUARDS, *ELSEWHERE]  # every law over guards runs on these


def cut_of(guard: Guard) -> tuple[int, ...]:
    """The shape that a guard reads in `tiny_plan(guard=guard)`."""
    return TASK.shape if isinstance(ELSEWHERE.get(guard), Whole) else (4, 5, 5)


def activations(guard: Guard, count: int = 6) -> Tensor:
    """Something for a guard to read: numbers around 0, or pictures where it is at the input."""
    shape = (count, *cut_of(guard))
    return torch.rand(shape) if cut_of(guard) == TASK.shape else torch.randn(shape)


def tiny_plan(**changes: object) -> Plan:
    fields = {
        "net": ELSEWHERE.get(changes.get("guard"), TinyNet()),
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
