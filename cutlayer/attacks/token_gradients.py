"""Token gradients: where a client learns to name the next word, the gradient it sends back names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import PAD, Task
from ..core.message import Message
from .base import Attack, Attacker, Knowledge
from .parts.exchanges import as_it_answered
from .parts.label_gradient import SURE, next_tokens, text_of


@dataclass(frozen=True, repr=False)
class TokenGradients(Attack):
    """Texts of a language model from the gradients sent back: du names the next word to who knows the tail.

    DLG (Zhu et al. 2019), iDLG and TAG (Deng et al. 2021) search for inputs or labels whose gradients are those
    observed. In the U shape the server sees no gradient of the client's weights. It has u, which it computed, and du
    at every token: with the tail (published weights, or a white box) that is a lookup, not a search. Labels are the
    text, a token on, so all but the first word come back, whatever guards z.
    """

    inputs: ClassVar[tuple[str, ...]] = ("texts",)
    needs: ClassVar[tuple[str, ...]] = ("aux", "body", "tail")
    whole_steps: ClassVar[bool] = True

    def why_not(self, task: Task, labels_stay_home: bool) -> str | None:
        if (why := super().why_not(task, labels_stay_home)) is not None:
            return why
        if not labels_stay_home:
            return (
                f"{self} reads the gradients of a tail at home, and here the server computes the loss: take UShaped"
            )
        if task.classes != task.vocabulary:
            return (
                f"{self} reads the next word off a gradient, and here a text has one of {task.classes} classes: "
                "that is all its gradient names: leave it out, TailEnumeration reads that"
            )
        return None

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Naming(knowledge)


class _Naming(Attacker):
    def __init__(self, knowledge: Knowledge):
        assert knowledge.aux is not None and knowledge.body is not None and knowledge.tail is not None
        self.body, self.tail = as_it_answered(knowledge.body), as_it_answered(knowledge.tail)
        first = knowledge.aux[:, 0]
        self.first = int(first[first != PAD].bincount().argmax())
        self.match = float("nan")

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        found = next_tokens(self.body, self.tail, messages)
        self.match = float(found.match[found.match > SURE].mean())
        return text_of(found, torch.full_like(found.labels, self.first))

    def remarks(self) -> dict[str, object]:
        return {"match": round(self.match, 4)}
