"""What DISCO's decoupler of the input costs: a training step of PRISM against one of DISCO on the same network."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from ..core.batch import Batch
from ..guards import Disco, Guard, Prism
from ..nets.decoupler import FIELDS, FieldConvolution
from ..nets.resnet import ResNet18
from ..training.build import build_client, build_server
from ..training.plan.plan import Plan, Task
from ..training.protocols import Bypass, Protocol, UShaped
from ..training.step import learn
from .measurement import Measured

TASK = Task((3, 64, 64), 2, {"secret": 2})


class Published(FieldConvolution):
    """The same layer as the published code computes it: all 64 channels of all 64 fields, added up afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        count, (height, width) = len(x), x.shape[2:]
        fields = x.unfold(2, height // FIELDS, height // FIELDS).unfold(3, width // FIELDS, width // FIELDS)
        alone = fields.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        large = interpolate(alone, size=(height, width), mode="bilinear", align_corners=False)
        maps = conv2d(large, self.weight, None, self.stride, self.padding).sum(1)
        return maps.reshape(count, FIELDS**2, *maps.shape[1:])


def decoupler(quick: bool) -> Measured:
    """PRISM's step against DISCO's with its decoupler of the input: ResNet-18 cut after layer2, 64x64."""
    return _against_prism(quick, published=False)


def published(quick: bool) -> Measured:
    """PRISM's step against DISCO's with the decoupler of the published code; the thesis has a factor of about 3."""
    return _against_prism(quick, published=True)


def _against_prism(quick: bool, *, published: bool) -> Measured:
    batch = 4 if quick else 32
    prism = _stepping(
        ResNet18(depth=4), Bypass(fusion="hybrid"), Prism(privacy="adversary", attribute="secret"), batch
    )
    disco = _stepping(ResNet18(stem="fields", depth=4), UShaped(), Disco(attribute="secret"), batch, published)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(2 if quick else 12):
        for step, found in zip((prism, disco), times, strict=True):
            began = time.process_time()
            step()
            if number:  # the first ones warm up
                found.append(time.process_time() - began)
    ours, theirs = map(median, times)
    return Measured(1e3 * ours, "CPU-ms", theirs / ours, "DISCO behind its decoupler of the input", ">= 1.0")


def _stepping(
    net: ResNet18, protocol: Protocol, guard: Guard, batch: int, published: bool = False
) -> Callable[[], object]:
    plan = Plan(net=net, protocol=protocol, guard=guard, private_seed=1)
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    if published:
        client.split.head.conv1.__class__ = Published
    y = torch.arange(batch) % 2
    samples = Batch(torch.rand(batch, *TASK.shape), y, {"secret": y})
    return lambda: learn(client, samples)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "disco.decoupler": decoupler,
    "disco.decoupler.published": published,
}
