"""How samples are cut into steps."""

import torch
from torch import Tensor

from ..core.seeds import generator


def epoch_batches(count: int, size: int, seed: int, least: int = 2) -> list[Tensor]:
    """A shuffled epoch of `count` samples as index tensors, none smaller than `least`."""
    return in_batches(torch.randperm(count, generator=generator(seed)), size, least)


def in_batches(index: Tensor, size: int, least: int = 2) -> list[Tensor]:
    """`index` in pieces of `size`. A last piece below `least` joins the one before it: BatchNorm cannot train on one
    sample, and a guard that hides a sample among k others needs k of them."""
    batches = list(index.split(size))
    if len(batches) > 1 and len(batches[-1]) < least:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
