"""What a server keeps of a client from one message to the next: graphs that wait for a gradient, its last answer."""

from typing import NamedTuple

import torch
from torch import Tensor

from .errors import ProtocolError
from .message import Message


class Held(NamedTuple):
    """A forward pass that waits for its gradient."""

    z: Tensor
    u: Tensor
    version: int  # of the body that computed it


class Pending:
    """By client. A batch may come in `micro_batches` pieces, each with a number of its own."""

    def __init__(self, micro_batches: int):
        self.micro_batches = micro_batches
        self.held: dict[int, dict[int, Held]] = {}  # by client and number
        self.last: dict[int, tuple[Message, Message]] = {}  # by client: the last message, and its answer

    def hold(self, message: Message, held: Held) -> None:
        """Keep the graph of a piece until its gradient comes, and no graph of a batch that was given up."""
        batch, waits = message.step // self.micro_batches, self.held.setdefault(message.client, {})
        for step in [step for step in waits if step // self.micro_batches != batch]:
            del waits[step]
        waits[message.step] = held

    def take(self, message: Message, version: int) -> Held:
        """The forward pass that a BACKWARD belongs to, or a refusal, which changes nothing."""
        waits = self.held.get(message.client, {})
        held = waits.get(message.step)
        if held is None:
            waiting = f"step {', '.join(map(str, waits))} is waiting" if waits else "no step is waiting"
            raise ProtocolError(f"{message} has no forward pass to belong to: {waiting}")
        if since := version - held.version:
            raise ProtocolError(
                f"{message} comes after {since} update(s) of the body by other clients: "
                "its graph is gone. Give each client its own body, or answer one client from FORWARD to BACKWARD"
            )
        du = message["du"]
        if du.shape != held.u.shape:
            raise ProtocolError(f"{message}: du has shape {tuple(du.shape)}, u had {tuple(held.u.shape)}")
        del waits[message.step]
        if not waits:
            del self.held[message.client]
        return held

    def answered(self, message: Message) -> Message | None:
        """The answer to a message that was answered just before: a retry gets it again, and makes no second step."""
        asked, answer = self.last.get(message.client, (None, None))
        return answer if asked is not None and _same(asked, message) else None

    def keep(self, message: Message, answer: Message) -> None:
        self.last[message.client] = message, answer

    def drop(self, client: int) -> None:
        """A client's turn is over, or it starts anew: nothing of it will be asked for again."""
        self.held.pop(client, None)
        self.last.pop(client, None)


def _same(one: Message, other: Message) -> bool:
    """A retry repeats the whole message. A new conversation may reuse a step number, never the data as well."""
    if one.step != other.step or one.kind != other.kind or one.tensors.keys() != other.tensors.keys():
        return False
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
