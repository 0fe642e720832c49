"""What the server's orders to a client carry, and how both sides read it."""

import torch

from ..core.errors import ProtocolError
from ..core.message import Message
from ..core.state import State
from ..rules.base import CONTROL, NET, OPTIMIZER, SEAL, STAT

PURPOSES = ("validate", "test")  # what an evaluation is for, by its number in an order


def weights_in(message: Message) -> State:
    """The client weights and optimizer state that travel with an order or its answer, and their seal."""
    return {name: t for name, t in message.tensors.items() if name.startswith((NET, STAT, OPTIMIZER, CONTROL, SEAL))}


def numbers(message: Message, name: str, count: int) -> list[int]:
    """The whole numbers an order carries under `name`."""
    found = message[name]
    if found.dtype != torch.int64 or found.shape != (count,):
        raise ProtocolError(f"{message} should carry {count} whole numbers as {name!r}")
    return found.tolist()
