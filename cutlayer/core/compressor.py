"""Fewer bits for a tensor that crosses, at the price of its last digits.

Below autograd, so gradients pass as if nothing had happened (a straight-through estimate). On the way up a guard does
it (`Quantize`, `TopK`), where it can be chained and audited; the `compression` of a plan does it to the other
messages, by a watcher on either side of the cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .message import Handler, Kind, Message
from .seeds import derive, generator
from .spec import Spec

__all__ = ["Compression"]


@dataclass(frozen=True, repr=False)
class Compressor(Spec):
    """Leaves a tensor as it is."""

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """The tensor the other side will have, and the bytes for it (codecs.Prepared; None: whatever is smallest).

        Without a generator to `draw` from it takes torch's own: whoever calls has seeded that for this step.
        """
        return tensor, None

    def works_on(self, rows: int, shape: tuple[int, ...]) -> bool:
        """Whether so many rows of this shape are enough for it."""
        return True

    def least_rows(self, shape: tuple[int, ...]) -> int:
        """The fewest rows of this shape that it can work on."""
        return 1


@dataclass(frozen=True, repr=False)
class Compression(Spec):
    """How u comes down (`answers`), and how gradients travel, du up and dz down: Quantize(bits=8) and the like."""

    answers: Compressor = Compressor()
    gradients: Compressor = Compressor()

    def __post_init__(self) -> None:
        for name in ("answers", "gradients"):
            if not isinstance(getattr(self, name), Compressor):
                raise ValueError(
                    f"{name} cannot be {getattr(self, name)!r}; see: Quantize, TopK, RandTopK or SplitFC"
                )


NOTHING = Compression()


class Compress:
    """What crosses here is as small as the plan says: u and dz on the server's side, du on the client's.

    Whatever rounding draws is a function of `seed`, client and step: a retried message gets the same bytes.
    """

    def __init__(self, seed: int, compression: Compression):
        self._seed = seed
        self._ways = {"u": compression.answers, "du": compression.gradients, "dz": compression.gradients}

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
        tensor = message[name]
        if message.kind is Kind.PREDICT and not way.works_on(len(tensor), tuple(tensor.shape[1:])):
            return message  # who asks about one sample, or one token, has no more: as it is, in more bytes
        # A prediction has no step of its own.
        where = "down" if name == "u" else "back"
        names = ("predict", message.client) if message.kind is Kind.PREDICT else (where, message.client, message.step)
        draw = generator(derive(self._seed, *names))
        with torch.no_grad():
            tensor, packed = way.compress(tensor, draw)
        return _with(message, name, tensor, packed)


def compressing(seed: int, compression: Compression) -> list[Compress]:
    """The watcher, where there is anything to compress."""
    return [] if compression == NOTHING else [Compress(seed, compression)]


def _with(message: Message, name: str, tensor: Tensor, packed: Any) -> Message:
    ready: Mapping[str, Any] = message.packed if packed is None else {**message.packed, name: packed}
    return Message(message.kind, message.client, message.step, {**message.tensors, name: tensor}, ready)
