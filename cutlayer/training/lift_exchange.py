"""Guards whose halves learn apart: now and then the client copies the server's half, or replaces it."""

import torch
from torch import nn

from ..core.errors import ProtocolError
from ..core.message import Handler, Kind, Message


class LiftExchange:
    """A watcher that answers LIFT; the server never hears of it. `mode`: the client may "copy" or "replace"."""

    def __init__(self, lift: nn.Module, mode: str):
        self._lift, self._mode = lift, mode

    def __call__(self, message: Message, answer: Handler) -> Message:
        return self._exchanged(message) if message.kind is Kind.LIFT else answer(message)

    @torch.no_grad()
    def _exchanged(self, message: Message) -> Message:
        if bool(message.tensors) != (self._mode == "replace"):
            raise ProtocolError(f"{message}: this guard's half at the server is not exchanged that way")
        own = self._lift.state_dict()
        if not message.tensors:
            return message.reply({}, **{f"lift.{name}": t.clone() for name, t in own.items()})
        given = {name.removeprefix("lift."): t for name, t in message.tensors.items()}
        # In a chain, one guard's half is replaced, and others stay.
        if any(n not in own or (own[n].shape, own[n].dtype) != (t.shape, t.dtype) for n, t in given.items()):
            raise ProtocolError(f"{message}: these are not the weights of the guard's half at the server")
        self._lift.load_state_dict(own | given)
        return message.reply()
