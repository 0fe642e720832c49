"""What a guard is to the protocol: a module between head and server, and what it makes of a batch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .batch import Batch

Shape = tuple[int, ...]  # of one sample, without the batch


class Guarded(NamedTuple):
    """What a guard makes of one batch."""

    seen: Tensor  # leaves the client
    penalty: dict[str, Tensor] = {}  # noqa: RUF012  joins the loss, by name (never written to: guards build their own)
    rows: Tensor | None = None  # for each sample, the row of `seen` that stands for it; None: its own
    home: Tensor | None = None  # what the guard held back, for the home stream of a Bypass


class GuardModule(nn.Module):
    """The client's half. This one changes nothing.

    Whatever a client must not hand on (keys) belongs in non-persistent buffers: `state_dict` is what a relay shows.
    `notes` are figures of the last step for the history, as numbers or tensors of one; they are not part of the loss.
    `packed` are the bytes that the last `seen` may travel in (codecs.Prepared), where the guard knows them.
    """

    draws_nothing = True  # this one: what a guard of another type does it cannot say
    takes_gradients_apart = False  # whether a step holds each sample's own gradient beside that of the batch

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, Any] = {}
        self.packed: Any = None

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.notes = {}  # what the last batch had to say is not said of this one
        return super().__call__(*given, **named)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        return Guarded(z)

    # Rows that the server's half makes of each one that leaves (Guard.fan_out).
    fan_out: int = 1

    def unmixed(self, seen: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows as the server can take them apart without any secret, and which of them stands for each sample."""
        return seen, rows

    def answers(self, seen: Tensor, rows: Tensor | None) -> Tensor | None:
        """For each sample the row of the server's answer; None: its own."""
        if self.fan_out == 1 or rows is None:
            return rows
        full = len(rows) == self.fan_out * len(seen)
        return None if full else torch.arange(len(rows), device=seen.device)

    def lift_due(self, step: int) -> dict[str, Tensor] | None:
        """Before a step: None, or what the server's half is to be replaced with; empty: a copy of it is wanted."""
        return None

    def take_lift(self, state: Mapping[str, Tensor]) -> None:
        """The copy that was wanted has come."""
