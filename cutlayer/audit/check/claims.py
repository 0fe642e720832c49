"""The law of claims: what a guard says of what leaves is held against what leaves, alone and in chains."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.batch import Batch, Task
from ...core.guard import Shape
from ...core.seeds import generator, seeded
from ...guards import (
    DCT,
    LFQ,
    SEAL,
    Chain,
    Claim,
    Clip,
    Gate,
    Gaussian,
    Guard,
    KAnonymous,
    Laplace,
    LightSplit,
    Quantize,
    Sent,
    SplitFC,
    Subset,
)
from ...guards.base import standing
from ...training.laws import TASK, need, toy_batch
from ...wire.choice import smallest

ROWS = 32  # of a batch: more than a claim about the rank of toys speaks of
# What a guard is tried behind and before: every claim that the package makes, and what breaks most of them.
COMPANY: tuple[Guard, ...] = (
    Clip(norm=1.0),
    LightSplit(ratio=4),
    Subset(ratio=4),
    KAnonymous(k=3),
    SEAL(),
    DCT(),
    LFQ(bits=2),
    Gate(numbers=8, bits=2, hidden=8),
    SplitFC(ratio=2, budget=3),
    Gaussian(scale=0.5),
    Laplace(scale=0.5),
    Quantize(bits=4),
)


class Held(NamedTuple):
    """A claim of one part of a guard, and whether it is true of a batch."""

    part: Guard
    claim: Claim
    holds: bool


def held(guard: Guard, shape: Shape, z: Tensor, batch: Batch, task: Task = TASK, training: bool = True) -> list[Held]:
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


def inputs(shape: Shape, count: int = ROWS) -> Iterator[Tensor]:
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


def claims_what_is_so(guard: Guard, shape: Shape, task: Task = TASK) -> None:
    """what it claims is true of what is sent"""
    if not any(one.claims for one in standing(guard, shape)):
        return
    for place, z in enumerate(inputs(shape)):
        for training in (True, False):
            for part, claim, holds in held(guard, shape, z, toy_batch(task, len(z), place), task, training):
                need(
                    holds,
                    f'{part} claims "{claim.text}", and that is false of what {guard} sends: correct the sentence, '
                    "or what Claim.survives or bound() say of it",
                )


def chains_with(guard: Guard, others: Sequence[Guard], shape: Shape) -> list[Guard]:
    """Chains of two, in either order, that are no mistake at this cut."""
    found: list[Guard] = []
    for other in others:
        for pair in ((other, guard), (guard, other)):
            try:
                chain = Chain(*pair)
                chain.out_shape(shape)
            except ValueError:
                continue
            found.append(chain)
    return found
