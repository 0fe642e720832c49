"""Retrieval: no picture is made at all. The auxiliary image whose own message is nearest to the one observed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.message import Message
from .base import Attacker, Knowledge, smashed
from .parts.keyed import Keyed, made


@dataclass(frozen=True, repr=False)
class Retrieval(Keyed):
    """White box, the cheapest: shows the auxiliary image whose own message is nearest to the one observed.

    Auxiliary images pass the client's head and guard (or a copy of it, by `keys`), and messages are compared as they
    are, by Euclidean distance. An attacker with a network that does not beat this one has learnt little of
    messages; one that shows sharper pictures may merely be showing auxiliary ones.
    """

    inputs: ClassVar[tuple[str, ...]] = ("images", "texts")

    @property
    def white_box(self) -> bool:
        """It has no picture but those it was given, so what it fails to find says nothing of the guard."""
        return False

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Nearest(self.keys, knowledge, seed)


class _Nearest(Attacker):
    def __init__(self, keys: str, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None
        own = made(keys, knowledge, seed)
        self.seen = torch.cat([own.seen, own.held]).flatten(1)
        self.images = knowledge.aux[torch.cat([own.rows, own.held_rows])]
        self.found = {} if keys != "recovered" else {"key_empty": own.key_empty}

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.images[nearest(smashed(messages).flatten(1), self.seen)]

    def remarks(self) -> dict[str, object]:
        return dict(self.found)


def nearest(rows: Tensor, among: Tensor) -> Tensor:
    """For each row the number of the nearest of `among`; NaN is near to nothing."""
    return torch.cat([torch.cdist(some, among).nan_to_num(torch.inf).argmin(1) for some in rows.split(256)])
