"""The client's network: labels that stay home, and labels that travel.

A plan names a protocol by its spec (`training/protocols`), which builds one of these or one of its own.
"""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .batch import Batch
from .features import Unchanged, features
from .guard import Guarded, GuardModule
from .remote import Remote
from .threads import count_as_set


class Output(NamedTuple):
    """Logits, and the penalties that guards add to the loss, by name."""

    logits: Tensor
    penalty: dict[str, Tensor]


class Split(nn.Module):
    """Head, guard and tail. An ordinary module: `split.loss(batch, server).backward()` crosses the cut."""

    def __init__(self, head: nn.Module, tail: nn.Module | None = None, guard: GuardModule | None = None):
        super().__init__()
        self.head, self.tail, self.guard = head, tail or Unchanged(), guard or GuardModule()

    def forward(self, batch: Batch, server: Remote) -> Output:
        raise NotImplementedError

    def terms(self, batch: Batch, server: Remote) -> dict[str, Tensor]:
        """The loss term by term: "task", and one entry for every guard that adds a penalty."""
        logits, penalty = self(batch, server)
        return {"task": cross_entropy(logits, batch.y), **penalty}

    def loss(self, batch: Batch, server: Remote) -> Tensor:
        return reduce(torch.add, self.terms(batch, server).values())

    def share(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """(what the guard may see, what stays home) of a cut activation."""
        return z, None

    def guarded(self, batch: Batch) -> tuple[Guarded, Mapping[str, Tensor]]:
        """What the guard makes of a batch, with all that stays home, and what crosses beside z."""
        count_as_set()
        z, beside = features(self.head(batch.x))
        shared, kept = self.share(z)
        made = self.guard(shared, batch)
        if beside and (made.rows is not None or len(made.seen) != len(z)):
            raise ValueError(
                f"samples share rows of what leaves, and {', '.join(beside)} beside it fits none of them"
            )
        return (made if kept is None or made.home is not None else made._replace(home=kept)), beside

    def send(self, batch: Batch) -> Tensor:
        """What leaves the client for each sample of this batch, without sending it: the server's whole view of it."""
        guarded, _ = self.guarded(batch)
        return each(*self.guard.unmixed(guarded.seen, guarded.rows))


def each(rows: Tensor, index: Tensor | None) -> Tensor:
    """For each sample the row that stands for it. Guards may let several samples share one."""
    return rows if index is None else rows.index_select(0, index)


class UShapedNetwork(Split):
    """The labels stay home: features come back and the client finishes."""

    draws_nothing = True  # but for its parts

    def forward(self, batch: Batch, server: Remote) -> Output:
        (seen, penalty, rows, _), beside = self.guarded(batch)
        u = each(server.body(seen, self.guard.packed, beside), self.guard.answers(seen, rows))
        return Output(self.tail(u, **beside), penalty)


class VanillaNetwork(Split):
    """The labels travel with the smashed data, and the server owns the loss.

    Where several samples share one row, the server is told which label belongs to which row; it has the labels.
    """

    draws_nothing = True  # but for its parts

    def forward(self, batch: Batch, server: Remote) -> Output:
        (seen, penalty, rows, _), beside = self.guarded(batch)
        return Output(each(server.body(seen, self.guard.packed, beside), self.guard.answers(seen, rows)), penalty)

    def terms(self, batch: Batch, server: Remote) -> dict[str, Tensor]:
        (seen, penalty, rows, _), beside = self.guarded(batch)
        loss = server.loss(seen, batch.y, self.guard.answers(seen, rows), self.guard.packed, beside)
        return {"task": loss, **penalty}
