"""The client's network, one class a protocol: the lines that make each protocol different."""

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, cross_entropy

from ..guards.base import GuardModule
from .batch import Batch
from .remote import Remote

__all__ = ["Bypass", "Federated", "UShaped", "Vanilla"]


class Output(NamedTuple):
    """Logits, and the penalties that guards add to the loss, by name."""

    logits: Tensor
    penalty: dict[str, Tensor]


class Split(nn.Module):
    """Head, guard and tail. An ordinary module: `split.loss(batch, server).backward()` crosses the cut."""

    labels_stay_home: ClassVar[bool] = True
    crosses: ClassVar[bool] = True  # whether anything but weights leaves the client

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
        return each(*self.guard.unmixed(guarded.seen, guarded.rows))

    def answers(self, seen: Tensor, rows: Tensor | None) -> Tensor | None:
        """For each sample the row of the server's answer; None: its own."""
        if self.guard.fan_out == 1 or rows is None:
            return rows
        full = len(rows) == self.guard.fan_out * len(seen)
        return None if full else torch.arange(len(rows), device=seen.device)


def each(rows: Tensor, index: Tensor | None) -> Tensor:
    """For each sample the row that stands for it. Guards may let several samples share one."""
    return rows if index is None else rows.index_select(0, index)


class UShaped(Split):
    """The labels stay home: features come back and the client finishes."""

    def forward(self, batch: Batch, server: Remote) -> Output:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        u = each(server.body(seen, self.guard.packed), self.answers(seen, rows))
        return Output(self.tail(u), penalty)


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
        u = each(server.body(seen, self.guard.packed), self.answers(seen, rows))
        return Output(self.tail(self.rejoin(u, channels if held is None else held)), penalty)


class Vanilla(Split):
    """The labels travel with the smashed data, and the server owns the loss.

    Where several samples share one row, the server is told which label belongs to which row; it has the labels.
    """

    labels_stay_home = False

    def forward(self, batch: Batch, server: Remote) -> Output:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        return Output(each(server.body(seen, self.guard.packed), self.answers(seen, rows)), penalty)

    def terms(self, batch: Batch, server: Remote) -> dict[str, Tensor]:
        seen, penalty, rows, _ = self.guard(self.head(batch.x), batch)
        return {"task": server.loss(seen, batch.y, self.answers(seen, rows), self.guard.packed), **penalty}


class Federated(Split):
    """No cut: the whole network is the client's and only weights travel (plain federated learning, a baseline)."""

    crosses = False

    def forward(self, batch: Batch, server: Remote) -> Output:
        guarded = self.guard(self.head(batch.x), batch)
        return Output(self.tail(guarded.seen), guarded.penalty)


FUSIONS = ("residual", "concat", "hybrid")
COARSE = 4  # places a side


class Rejoin(nn.Module):
    """The home stream of a bypass, brought to the shape of u and fused with it.

    residual: u + home; concat: a 1x1 mix of both; hybrid: that mix + u (PRISM: Madill 2025, Sec. 3.3.4). There, a
    local block first gives the home stream the size of u (BypassDownsample, Sec. 3.3.3). What is in it is ours: a
    strided 3-wide convolution with ReLU, averages over as many places as u has, and a 1x1 mix to its channels.
    Where u is a vector, the mix reads a coarse grid of averages.
    """

    def __init__(self, home: Sequence[int], u: Sequence[int], fusion: str = "residual"):
        super().__init__()
        (channels, *space), (width, *size) = home, u
        self.look: nn.Module = nn.Identity()
        if len(space) in (1, 2):  # a row of a table has no neighbours to look at
            convolution, stride = (nn.Conv1d, nn.Conv2d)[len(space) - 1], 2 if prod(space) > prod(size) else 1
            self.look = nn.Sequential(convolution(channels, channels, 3, stride=stride, padding=1), nn.ReLU())
            space = [(side - 1) // stride + 1 for side in space]
        # One mean over all places would forget where things were.
        grid = size or [min(side, COARSE) for side in space]
        self.average = Averages(space, grid)
        self.mix = nn.Conv1d(channels if size else channels * prod(grid), width, 1)
        self.fuse = None if fusion == "residual" else nn.Conv1d(2 * width, width, 1)
        self.adds = fusion != "concat"

    def forward(self, u: Tensor, home: Tensor) -> Tensor:
        # Channels x places on both sides; a vector has one place.
        theirs = u.reshape(*u.shape[:2], -1)
        means = self.average(self.look(home))
        ours = self.mix(means if u.dim() > 2 else means.reshape(len(means), -1, 1))
        if self.fuse is not None:
            ours = self.fuse(torch.cat([theirs, ours], dim=1))
        return (ours + theirs if self.adds else ours).reshape(u.shape)


class Averages(nn.Module):
    """Means over places: on the grid of `size` where both are maps, otherwise in order, as many as `size` has places.

    These are products with small matrices, because torch's adaptive pooling is not reproducible on a GPU.
    """

    axis0: Tensor
    axis1: Tensor

    def __init__(self, space: Sequence[int], size: Sequence[int]):
        super().__init__()
        self.maps = len(space) == len(size) == 2
        axes = zip(space, size, strict=True) if self.maps else [(prod(space), prod(size))]
        for number, (side, count) in enumerate(axes):
            means = adaptive_avg_pool1d(torch.eye(side)[None], count)[0]  # side x count
            self.register_buffer(f"axis{number}", means, persistent=False)

    def forward(self, home: Tensor) -> Tensor:
        if self.maps:
            return (self.axis0.T @ home @ self.axis1).flatten(2)
        return home.reshape(*home.shape[:2], -1) @ self.axis0


class FillChannels(nn.Module):
    """The server's side of a bypass: zeros where the channels are that stayed home."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, shared: Tensor) -> Tensor:
        missing = shared.new_zeros(len(shared), self.channels - shared.shape[1], *shared.shape[2:])
        return torch.cat([shared, missing], dim=1)
