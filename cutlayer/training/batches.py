"""How samples are cut into steps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.seeds import generator
from ..data.base import Samples
from .plan.plan import Plan


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


def task_of(samples: Samples, classes: int) -> Task:
    """What both sides are told of the data."""
    attributes = {name: int(values.max()) + 1 for name, values in samples.s.items() if len(values)}
    return Task(tuple(samples.x.shape[1:]), classes, attributes)


def as_batch(samples: Samples, index: Tensor, seed: int = 0) -> Batch:
    """Rows of `samples` as the batch of one step, in torch's default precision."""
    images = samples.images(index.to(samples.y.device)).to(torch.get_default_dtype())
    return Batch(images, samples.y[index], {name: values[index] for name, values in samples.s.items()}, seed)


def on(samples: Samples, device: torch.device) -> Samples:
    if device.type == "cpu":
        return samples
    moved: dict[str, Any] = {name: values.to(device) for name, values in samples.s.items()}
    return Samples(samples.x.to(device), samples.y.to(device), moved, samples.identity)


def refuse_too_few(plan: Plan, counts: Mapping[str, int]) -> None:
    """A guard that needs several samples at a time must find them in every set; a client may not be empty then."""
    least = plan.guard.least_batch
    for whose, count in counts.items():
        if 0 < count < least or (count == 0 and whose.startswith("client") and least > 1):
            raise ValueError(
                f"{whose} has {count} samples, {plan.guard} needs {least} at a time: "
                "fewer clients, more data, or a smaller k"
            )
