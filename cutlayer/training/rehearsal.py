"""What a client gives its detectors of its own: samples, its guard undone, and steps against an honest server."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import GuardModule
from ..core.seeds import derive
from ..data.base import Samples
from ..detectors import ClientAssets, SentBatch, swap_guard
from ..guards import Guard
from ..rules import Latest
from .batches import as_batch, training_batch
from .build import build_client, build_server, client_secret
from .own_data import OwnData
from .plan.plan import Plan
from .plan.schedule import Relay
from .plan.shapes import cut_shapes
from .step import ClientNetwork


class Party(NamedTuple):
    """Which client of which plan."""

    plan: Plan
    task: Task
    number: int
    device: torch.device


def assets(party: Party, own: OwnData) -> ClientAssets:
    """What a client's detectors may use of its own."""
    plan, task, number, device = party
    cut, public = cut_shapes(plan, task), derive(plan.seed, "guard")
    old = plan.guard_of(number)
    undo = old.undo(cut.shared, public)

    def some(most: int) -> SentBatch:
        batch = as_batch(own.pool, own.first(most))
        return SentBatch(batch.x, batch.y, batch.s, batch.x.new_zeros(len(batch.x), 0))

    def guard(new: Guard) -> GuardModule:
        private = client_secret(plan, number, "guard")
        return swap_guard(old, new, cut.shared, public=public, private=private, task=task, device=device)

    return ClientAssets(some, guard, undo.to(device) if undo is not None else None, own.pool.columns)


def honest_steps(
    party: Party, steps: int, samples: Samples, order: Callable[[int], list[Tensor]]
) -> Iterator[tuple[ClientNetwork, Batch]]:
    """A rehearsal with a server of the client's own making, on its own samples; nothing of it stays."""
    plan, task, number, device = party
    plan = replace(
        plan,
        client_detectors=(),
        rounds=Relay(),
        rule=Latest(),
        private_seed=client_secret(plan, number, "rehearsal"),
        seed=client_secret(plan, number, "server") % 2**31,
    )
    server = build_server(plan, task, device)
    client = build_client(plan, task, number, server.handle, device)
    epochs = range(steps // len(order(0)) + 1)
    batches = [index for epoch in epochs for index in order(epoch)]
    for place, index in enumerate(batches[:steps]):
        yield client, training_batch(plan, samples, index, client_secret(party.plan, number, "rehearsal", place))
