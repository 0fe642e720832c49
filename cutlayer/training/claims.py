"""What a guard claims of what leaves, held against what leaves."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import Shape
from ..core.seeds import generator, seeded
from ..guards import Chain, Claim, Guard, Sent
from ..guards.base import standing
from ..wire.choice import smallest

ROWS = 32  # of a batch: more than a claim about the rank of toys speaks of


class Held(NamedTuple):
    """A claim of one part of a guard, and whether it is true of a batch."""

    part: Guard
    claim: Claim
    holds: bool


def held(guard: Guard, shape: Shape, z: Tensor, batch: Batch, task: Task, training: bool = True) -> list[Held]:
    """Every claim that may be made of what `guard` sends for `z`, held against just that."""
    found = []
    left = _sent(guard.stages(), shape, z, batch, task, training)
    for place, (part, claims, _) in enumerate(standing(guard, shape)):
        # A part reads what those before it send: they are built alone, from the same seeds.
        read = _sent(guard.stages()[:place], shape, z, batch, task, training).seen if place and claims else z
        found += [Held(part, claim, claim.holds(left._replace(read=read))) for claim in claims]
    return found


def _sent(parts: Sequence[Guard], shape: Shape, z: Tensor, batch: Batch, task: Task, training: bool) -> Sent:
    with seeded(0):
        module = Chain(*parts).build(shape, 1, 2, task).train(training)
    with seeded(batch.seed), torch.no_grad():
        seen, _, rows, _ = module(z, batch)
    size = smallest(seen)[1]
    return Sent(z, seen, rows, size if module.packed is None else min(size, module.packed.size()))


def tempting(shape: Shape, count: int = ROWS) -> Iterator[Tensor]:
    """Batches that tempt a claim: ordinary ones, tiny and huge ones, rows alike, rows of nothing, single spikes."""
    plain = torch.randn(count, *shape, generator=generator(5))
    yield plain
    yield plain.relu() * 100
    yield plain * 1e-2
    spiky = plain.clone()
    spiky[::2] = 0
    spiky[0].view(-1)[0] = 50.0
    yield spiky
    yield plain[:1].expand(count, *shape).contiguous()
