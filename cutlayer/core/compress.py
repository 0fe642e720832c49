"""Lossy answers and gradients, as a watcher on either side of the cut."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .compressor import Compressor
from .message import Handler, Kind, Message
from .seeds import derive, generator


class Compress:
    """What crosses here is as small as the plan says: u and dz on the server's side, du on the client's.

    Whatever rounding draws is a function of `seed`, client and step: a retried message gets the same bytes.
    """

    def __init__(self, seed: int, *, answers: Compressor | None = None, gradients: Compressor | None = None):
        self._seed = seed
        self._ways = {
            "u": answers or Compressor(),
            "du": gradients or Compressor(),
            "dz": gradients or Compressor(),
        }

    def sent(self, message: Message, answer: Handler) -> Message:
        """The client's side: du leaves smaller."""
        return answer(self._smaller(message, "du")) if message.kind is Kind.BACKWARD else answer(message)

    def __call__(self, message: Message, answer: Handler) -> Message:
        """The server's side: u and dz leave smaller."""
        reply = answer(message)
        return self._smaller(reply, "dz" if message.kind is Kind.BACKWARD else "u")

    def _smaller(self, message: Message, name: str) -> Message:
        way = self._ways[name]
        if type(way) is Compressor or name not in message.tensors:
            return message
        # A prediction has no step of its own.
        where = "down" if name == "u" else "back"
        names = ("predict", message.client) if message.kind is Kind.PREDICT else (where, message.client, message.step)
        draw = generator(derive(self._seed, *names))
        with torch.no_grad():
            tensor, packed = way.compress(message[name], draw)
        return _with(message, name, tensor, packed)


def compressing(
    seed: int, *, answers: Compressor | None = None, gradients: Compressor | None = None
) -> list[Compress]:
    """The watcher, where there is anything to compress."""
    wanted = any(type(one) not in (Compressor, type(None)) for one in (answers, gradients))
    return [Compress(seed, answers=answers, gradients=gradients)] if wanted else []


def _with(message: Message, name: str, tensor: Tensor, packed: Any) -> Message:
    ready: Mapping[str, Any] = message.packed if packed is None else {**message.packed, name: packed}
    return Message(message.kind, message.client, message.step, {**message.tensors, name: tensor}, ready)
