"""What a client feeds one step, and how an epoch is cut into such steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .seeds import generator


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


def epoch_batches(count: int, size: int, seed: int) -> list[Tensor]:
    """A shuffled epoch of `count` samples as index tensors.

    A last batch of one joins the one before it: BatchNorm cannot train on one sample, and a guard that works on a
    batch could not hide it.
    """
    order = torch.randperm(count, generator=generator(seed))
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
