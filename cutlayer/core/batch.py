"""What a client feeds one step, what both sides know of the data, and how samples are cut into steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

PAD = 0  # the token id that fills a text up to its length
NO_LABEL = -100  # where a text has no next token, a pixel no class: torch's cross_entropy leaves these places out


class Task(NamedTuple):
    """What both sides must know of the data: the shape of one input, the number of classes, the sensitive attributes
    by name with the number of values each takes, and of texts how many token ids there are."""

    shape: tuple[int, ...]
    classes: int
    attributes: Mapping[str, int] = {}  # never written to
    vocabulary: int = 0  # 0: the numbers of an input are amounts, not names of words

    @property
    def kind(self) -> str:
        """What one input is: an image (C, H, W), a series (channels, length), a record of a table, or a text."""
        if self.vocabulary:
            return "texts"
        return {3: "images", 2: "series"}.get(len(self.shape), "records")


@dataclass(frozen=True)
class Batch:
    """Inputs, labels and optional sensitive attributes of one step.

    `seed` is this step's private randomness: whatever a guard draws is a function of it, so a replayed step is
    the same step and a copied guard does not repeat another client's noise.
    """

    x: Tensor
    y: Tensor
    s: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device | str) -> "Batch":
        moved = {name: values.to(device) for name, values in self.s.items()}
        return Batch(self.x.to(device), self.y.to(device), moved, self.seed)


def made_up(task: Task, count: int, draw: torch.Generator | None = None) -> Tensor:
    """Inputs that nobody has: amounts from 0 to 1, or texts of any words without padding."""
    if task.vocabulary:
        return torch.randint(min(PAD + 1, task.vocabulary - 1), task.vocabulary, (count, *task.shape), generator=draw)
    return torch.rand(count, *task.shape, generator=draw)
