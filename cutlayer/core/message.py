"""What crosses the cut, and the two signatures everything on the way has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .errors import ProtocolError
from .layout import as_it_arrives


class Kind(IntEnum):
    """Why a message was sent. The numbers are the wire's; they never change meaning."""

    FORWARD = 1  # z up, u down
    BACKWARD = 2  # du up (vanilla: the scale of the loss), dz down
    LOSS = 3  # vanilla: z and y up (and which row a label belongs to, where samples share rows), the loss down
    PREDICT = 4  # z up, u down; evaluation mode, nothing is held
    # Orders go the other way, from the server to a client, and the client answers.
    WEIGHTS = 5  # a turn in a relay: client weights go along, and come back
    TURN = 6  # a turn of a client that keeps its weights: which batches, back: how many samples
    EVALUATE = 7  # what for, with the weights of a relay; back: how many were right, of how many
    KEEP = 8  # write a snapshot; back: it is on disk
    REWIND = 9  # go back to a snapshot; back: the step this client stands at
    LIFT = 11  # asked by a client: the server's half of a guard, to copy (nothing up) or to replace (weights up)
    END = 10  # the run is over; the last weights of a relay come along


BESIDE = "beside."  # before the names of what crosses beside z (core/features.py)


@dataclass(frozen=True)
class Message:
    """One letter: kind, client, step and named tensors. Nobody writes into it, in process it shares memory.

    Its tensors lie as they would come out of a frame, so that in one process they are summed as between machines.
    """

    kind: Kind
    client: int
    step: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    # Bytes that some of the tensors can be read back from, as only who made them can write them (codecs.Prepared).
    packed: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        arrived = {name: as_it_arrives(tensor) for name, tensor in self.tensors.items()}
        if any(arrived[name] is not tensor for name, tensor in self.tensors.items()):
            object.__setattr__(self, "tensors", arrived)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise ProtocolError(
                f"{self} carries {sorted(self.tensors) or 'nothing'}, but {name!r} was expected"
            ) from None

    @property
    def beside(self) -> dict[str, Tensor]:
        """What crosses beside z, by its own names."""
        return {name.removeprefix(BESIDE): t for name, t in self.tensors.items() if name.startswith(BESIDE)}

    def __str__(self) -> str:
        return f"{self.kind.name} of client {self.client}, step {self.step}"

    def to(self, device: torch.device | str) -> "Message":
        """The same with its tensors on `device`; what was prepared for the wire stays behind."""
        if torch.device(device).type == "cpu":
            return self
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return Message(self.kind, self.client, self.step, moved)

    def reply(self, packed: Mapping[str, Any] | None = None, **tensors: Tensor) -> "Message":
        """The answer to this message: same kind, client and step."""
        return Message(self.kind, self.client, self.step, tensors, packed or {})


Handler = Callable[[Message], Message]
Watcher = Callable[[Message, Handler], Message]


def through(watchers: Sequence[Watcher], handler: Handler) -> Handler:
    """`handler` behind `watchers`; the first watcher sees a message first and its answer last."""

    def behind(inner: Handler, watcher: Watcher) -> Handler:
        return lambda message: watcher(message, inner)

    return reduce(behind, reversed(watchers), handler)
