"""The client's network, one class a protocol: the lines that make each protocol different."""

from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from .batch import Batch
from .guards.base import GuardModule
from .remote import Remote

__all__ = ["Bypass", "UShaped", "Vanilla"]


class Output(NamedTuple):
    """Logits, and the penalties that guards add to the loss, by name."""

    logits: Tensor
    penalty: dict[str, Tensor]


class Split(nn.Module):
    """Head, guard and tail. An ordinary module: `split.loss(batch, server).backward()` crosses the cut."""

    labels_stay_home: ClassVar[bool] = True

    def __init__(self, head: nn.Module, tail: nn.Module | None = None, guard: GuardModule | None = None):
        super().__init__()
        self.head, self.tail, self.guard = head, tail or nn.Identity(), guard or GuardModule()

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

    def send(self, batch: Batch) -> Tensor:
        """What leaves the client for each sample of this batch, without sending it: the server's whole view of it."""
        guarded = self.guard(self.share(self.head(batch.x))[0], batch)
        return each(guarded.seen, guarded.rows)


def each(rows: Tensor, index: Tensor | None) -> Tensor:
    """For each sample the row that stands for it. Guards may let several samples share one."""
    return rows if index is None else rows.index_select(0, index)


class UShaped(Split):
    """The labels stay home: features come back and the client finishes."""

    def forward(self, batch: Batch, server: Remote) -> Output:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        return Output(self.tail(each(server.body(seen), rows)), penalty)


class Bypass(Split):
    """A part never leaves and rejoins what the server returns: whole channels, or what the guard holds back."""

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        guard: GuardModule | None = None,
        *,
        sent: int,
        rejoin: nn.Module,
    ):
        super().__init__(head, tail, guard)
        self.sent, self.rejoin = sent, rejoin

    def share(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        return z[:, : self.sent].contiguous(), z[:, self.sent :]

    def forward(self, batch: Batch, server: Remote) -> Output:
        shared, channels = self.share(self.head(batch.x))
        seen, penalty, rows, held = self.guard(shared, batch)
        u = each(server.body(seen), rows)
        return Output(self.tail(self.rejoin(u, channels if held is None else held)), penalty)


class Vanilla(Split):
    """The labels travel with the smashed data, and the server owns the loss.

    Where several samples share one row, the server is told which label belongs to which row; it has the labels.
    """

    labels_stay_home = False

    def forward(self, batch: Batch, server: Remote) -> Output:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        return Output(each(server.body(seen), rows), penalty)

    def terms(self, batch: Batch, server: Remote) -> dict[str, Tensor]:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        return {"task": server.loss(seen, batch.y, rows), **penalty}


FUSIONS = ("residual", "concat", "hybrid")


class Rejoin(nn.Module):
    """The home stream of a bypass, brought to the shape of u and fused with it (PRISM, thesis Sec. 3.3).

    residual: u + home; concat: a 1x1 mix of both; hybrid: that mix + u.
    """

    def __init__(self, home: tuple[int, ...], u: tuple[int, ...], fusion: str = "residual"):
        super().__init__()
        self.size: Any = u[1:]
        self.fusion = fusion
        layer = nn.Conv2d if self.size else nn.Linear
        shape: Any = (1,) if self.size else ()
        self.mix = layer(home[0], u[0], *shape)
        self.fuse = None if fusion == "residual" else layer(2 * u[0], u[0], *shape)

    def forward(self, u: Tensor, home: Tensor) -> Tensor:
        if self.size:
            ours = self.mix(adaptive_avg_pool2d(home, self.size))
        else:
            ours = self.mix(home.flatten(2).mean(2) if home.dim() > 2 else home)
        if self.fuse is None:
            return u + ours
        fused = self.fuse(torch.cat([u, ours], dim=1))
        return fused + u if self.fusion == "hybrid" else fused


class FillChannels(nn.Module):
    """The server's side of a bypass: zeros where the channels are that stayed home."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, shared: Tensor) -> Tensor:
        missing = shared.new_zeros(len(shared), self.channels - shared.shape[1], *shared.shape[2:])
        return torch.cat([shared, missing], dim=1)
