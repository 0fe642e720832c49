"""The auxiliary image whose message is nearest to the one observed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cutlayer import Message
from cutlayer.attacks import Attack, Attacker, Knowledge, smashed


@dataclass(frozen=True, repr=False)
class Nearest(Attack):
    """The auxiliary image whose own message is nearest to the one observed."""

    needs: ClassVar[tuple[str, ...]] = ("aux", "aux_labels", "encode")

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        assert knowledge.aux is not None and knowledge.aux_labels is not None and knowledge.encode is not None
        return _Nearest(knowledge.aux, knowledge.encode(knowledge.aux, knowledge.aux_labels))


class _Nearest(Attacker):
    def __init__(self, images: Tensor, seen: Tensor):
        self.images, self.seen = images, seen.flatten(1)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        distance = torch.cdist(smashed(messages).flatten(1), self.seen)
        return self.images[distance.argmin(1)]
