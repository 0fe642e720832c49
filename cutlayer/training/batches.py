"""How samples are cut into steps."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.seeds import derive, generator
from ..data.augment import augmented
from ..data.base import Samples
from .plan.plan import Plan


def epoch_batches(count: int, size: int, seed: int, least: int = 2) -> list[Tensor]:
    """A shuffled epoch of `count` samples as index tensors, none smaller than `least`."""
    return in_batches(torch.randperm(count, generator=generator(seed)), size, least)


def in_batches(index: Tensor, size: int, least: int = 2) -> list[Tensor]:
    """`index` in pieces of `size`. A last piece below `least` joins the one before it: BatchNorm cannot train on one
    sample, and a guard that hides a sample among k others needs k of them."""
    if len(index) <= size:
        return [index]
    batches = list(index.split(size))
    if len(batches) > 1 and len(batches[-1]) < least:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def task_of(samples: Samples, classes: int) -> Task:
    """What both sides are told of the data."""
    attributes = {name: int(values.max()) + 1 for name, values in samples.s.items() if len(values)}
    return Task(tuple(samples.x.shape[1:]), classes, attributes, samples.vocabulary)


def shares_of(plan: Plan, private: Samples) -> list[Tensor]:
    """Which of the training samples each client has, where one data set is shared out."""
    return plan.partition.assign(private, plan.clients, derive(plan.seed, "partition"))


def as_batch(samples: Samples, index: Tensor, seed: int = 0) -> Batch:
    """Rows of `samples` as the batch of one step: amounts in torch's default precision, token ids as they are."""
    there = index.to(samples.y.device)  # once: every use of the index would bring it over again
    x = samples.images(there)
    x = x.to(torch.get_default_dtype()) if x.is_floating_point() else x
    return Batch(x, samples.y[there], {name: values[there] for name, values in samples.s.items()}, seed)


def training_batch(plan: Plan, samples: Samples, index: Tensor, seed: int) -> Batch:
    """The batch that a client learns from: as `as_batch`, with images varied as the plan's data say.

    How they are varied is a function of the step's seed, so that a replayed step is the same one.
    """
    batch = as_batch(samples, index, seed)
    if not plan.data.augment:
        return batch
    return replace(batch, x=augmented(batch.x, plan.data.augment, derive(seed, "augment")))


def on(samples: Samples, device: torch.device) -> Samples:
    if device.type == "cpu":
        return samples
    moved: dict[str, Any] = {name: values.to(device) for name, values in samples.s.items()}
    return replace(samples, x=samples.x.to(device), y=samples.y.to(device), s=moved)


def micro_batches(plan: Plan, index: Tensor) -> tuple[Tensor, ...]:
    """The pieces a batch travels in; a small last batch has fewer."""
    most = len(index) // max(2, plan.guard.least_batch)
    return index.tensor_split(max(1, min(plan.micro_batches, most)))
