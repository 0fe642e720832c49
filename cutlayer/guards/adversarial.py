"""Adversarial training at the cut: the head unlearns what a reader of its activations could use."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import seeded
from .base import Guard
from .parts.adversary import Opponent, check_opponent, opponent


@dataclass(frozen=True, repr=False)
class Adversarial(Guard):
    """A reader of what leaves, trained at home, whose gradient reaches the head reversed. Client only.

    Joint adversarial representation learning: the reader guesses the input (as an image, or row of numbers) or, where
    `attribute` names one, a sensitive attribute; the head minimises task - weight · reader's loss, in the same
    backward pass. The input is guessed in squared error over that of the mean image, so 1 is chance whatever the
    data. No sample is pushed beyond chance, or the loss had no lower end. The reader only stands for the attackers to
    come: what it cannot read another may.
    """

    weight: float = 1.0
    attribute: str | None = None
    width: int = 32
    client_only: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True
    search: ClassVar[Search] = {"weight": Between(0.1, 10.0, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 <= self.weight < float("inf"):
            raise ValueError(f"Adversarial's weight is a number from 0 up (useful: 0.1 to 10); got {self.weight!r}")
        check_opponent(self, self.attribute, self.width)

    @property
    def attributes(self) -> tuple[str, ...]:
        return () if self.attribute is None else (self.attribute,)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        with seeded(private):
            return _Unlearn(self.weight, opponent(self, shape, task, self.attribute, self.width))


class _Unlearn(GuardModule):
    def __init__(self, weight: float, reader: Opponent):
        super().__init__()
        self.weight, self.reader = weight, reader

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if not (self.training and torch.is_grad_enabled()):
            return Guarded(z)
        loss = self.reader(z, batch, self.weight)
        self.notes = self.reader.notes
        return Guarded(z, {"Adversarial": loss})
