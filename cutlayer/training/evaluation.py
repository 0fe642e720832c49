"""How well a network does: accuracy by class, and labels of pixels by intersection over union."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.seeds import derive, generator
from ..data.base import Samples
from .batches import as_batch, in_batches
from .plan.plan import Plan
from .step import ClientNetwork, predict

EVALUATION_BATCH = 500


class Score(NamedTuple):
    """How many of how many were right, and which: by class, or of pixels what was taken for what."""

    right: int
    samples: int
    by_class: Tensor | None = None  # right and all samples of each class, where a sample has one
    confusion: Tensor | None = None  # where every pixel has a class


def classes_of(network: ClientNetwork, plan: Plan, samples: Samples, seed: Callable[[int], int]) -> Tensor:
    """What a client's network takes each sample for; batch `number` draws from `seed(number)`.

    In an order of their own: in a fixed one a server could average the messages of a sample over the epochs, whatever
    noise each of them has.
    Guards act here as they do in service. One that mixes samples gets batches of the size it was trained with: in a
    larger one it would find closer neighbours.
    """
    size = plan.batch_size if plan.guard.mixes_samples else EVALUATION_BATCH
    order = torch.randperm(len(samples), generator=generator(derive(seed(0), "order")))
    batches = in_batches(order, size, plan.least_batch)
    every = (as_batch(samples, index, seed(number)) for number, index in enumerate(batches))
    found = torch.cat([predict(network, [batch]).argmax(1) for batch in every])
    return torch.empty_like(found).index_copy_(0, order.to(found.device), found)


def score(found: Tensor, truth: Tensor, classes: int) -> Score:
    hit = found == truth
    right, count = int(hit.sum()), found.numel()
    if found.dim() > 1:
        return Score(right, count, confusion=confusion(found, truth, classes))
    by_class = torch.stack([y.bincount(minlength=classes) for y in (truth[hit], truth)])
    return Score(right, count, by_class=by_class.cpu())


def confusion(found: Tensor, truth: Tensor, classes: int) -> Tensor:
    """How many pixels of each class (row) were taken for which (column)."""
    both = truth.flatten() * classes + found.flatten()
    return both.bincount(minlength=classes * classes).reshape(classes, classes).cpu()


def mean_iou(counts: Tensor) -> float:
    """Intersection over union, averaged over the classes that are there or were found (0/0 is no class's score)."""
    hit = counts.diagonal().double()
    union = counts.sum(0) + counts.sum(1) - hit
    present = union > 0
    return float((hit[present] / union[present]).mean()) if present.any() else 0.0


def mean_iou_of_each(found: Tensor, truth: Tensor, classes: int) -> Tensor:
    """The same for every sample by itself, over the classes in it."""
    each = zip(found, truth, strict=True)
    return torch.tensor([mean_iou(confusion(one, other, classes)) for one, other in each], dtype=torch.float64)
