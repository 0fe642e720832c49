"""How well a network does: accuracy by class, labels of pixels by intersection over union, texts by perplexity."""

from collections.abc import Callable, Iterable, Iterator
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.batch import NO_LABEL, Batch
from ..core.seeds import derive, generator
from ..data.base import Samples
from ..data.streamed import soon_of
from .batches import as_batch, in_batches
from .plan.plan import Plan
from .step import ClientNetwork, predict

EVALUATION_BATCH = 500  # samples in a message,
EVALUATION_PIXELS = EVALUATION_BATCH * 64 * 64  # or fewer, of large images


class Score(NamedTuple):
    """How many of how many were right, and which: by class, or of pixels what was taken for what."""

    right: int
    samples: int
    by_class: Tensor | None = None  # right and all samples of each class, where a sample has one
    confusion: Tensor | None = None  # where every pixel has a class
    surprise: float | None = None  # of next tokens: the sum of -log of the probability that each was given
    loss: float | None = None  # where a sample has one class: the sum of its cross-entropy


def evaluated(
    network: ClientNetwork, plan: Plan, samples: Samples, classes: int, seed: Callable[[int], int]
) -> Score:
    """How well a client's network does on `samples`; batch `number` draws from `seed(number)`."""
    if samples.vocabulary and samples.y.dim() > 1:
        return _next_tokens(network, plan, samples, seed)
    if samples.y.dim() > 1:
        return _maps(network, plan, samples, classes, seed)
    found, loss = classes_of(network, plan, samples, seed)
    return score(found, samples.y, classes)._replace(loss=loss)


def _batches(plan: Plan, samples: Samples, seed: Callable[[int], int], size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Which samples, and the batch of them.

    In an order of their own: in a fixed one a server could average the messages of a sample over the epochs, whatever
    noise each of them has.
    Guards act here as they do in service. One that mixes samples gets batches of the size it was trained with: in a
    larger one it would find closer neighbours.
    """
    if plan.guard.mixes_samples:
        size = plan.batch_size
    elif samples.x.dim() == 4:
        size = max(plan.least_batch, min(size, EVALUATION_PIXELS // samples.x.shape[2:].numel()))
    order = torch.randperm(len(samples), generator=generator(derive(seed(0), "order")))
    batches = in_batches(order, size, plan.least_batch)
    for number, index in enumerate(batches):
        samples.soon(soon_of(batches, number))
        yield index, as_batch(samples, index, seed(number))


def classes_of(
    network: ClientNetwork, plan: Plan, samples: Samples, seed: Callable[[int], int]
) -> tuple[Tensor, float]:
    """What a client's network takes each sample for, and their cross-entropy together."""
    order, found, losses = list[Tensor](), list[Tensor](), list[Tensor]()
    for index, batch in _batches(plan, samples, seed, EVALUATION_BATCH):
        scores = predict(network, [batch])
        order.append(index)
        found.append(scores.argmax(1))
        losses.append(cross_entropy(scores, batch.y.to(scores.device), reduction="sum").double())
    every = torch.cat(found)
    placed = torch.empty_like(every).index_copy_(0, torch.cat(order).to(every.device), every)
    return placed, float(torch.stack(losses).sum())


def _maps(network: ClientNetwork, plan: Plan, samples: Samples, classes: int, seed: Callable[[int], int]) -> Score:
    """Where every pixel has a class: counted batch by batch, as all maps at once may not fit into memory."""
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for _, batch in _batches(plan, samples, seed, EVALUATION_BATCH):
        counts += confusion(predict(network, [batch]).argmax(1), batch.y, classes)
    return Score(int(counts.diagonal().sum()), int(counts.sum()), confusion=counts)


def _next_tokens(network: ClientNetwork, plan: Plan, samples: Samples, seed: Callable[[int], int]) -> Score:
    """Every place is judged that has a next token. Batches as in training: scores are as many as there are words."""
    right, count, surprise = 0, 0, 0.0
    for _, batch in _batches(plan, samples, seed, plan.batch_size):
        scores = predict(network, [batch])
        judged = batch.y != NO_LABEL
        right += int((scores.argmax(1) == batch.y)[judged].sum())
        count += int(judged.sum())
        surprise += float(surprise_of_each(scores, batch.y).sum())
    return Score(right, count, surprise=surprise)


def surprise_of_each(scores: Tensor, y: Tensor) -> Tensor:
    """-log of the probability that each next token was given, summed over the places of every text."""
    return cross_entropy(scores, y, ignore_index=NO_LABEL, reduction="none").double().sum(1)


def mean_loss(scores: Iterable[Score | None]) -> dict[str, float]:
    """`loss`: cross-entropy a sample, over all networks that were evaluated; nothing where it is not known."""
    known = [one for one in scores if one is not None and one.loss is not None and one.samples]
    total, samples = sum(one.loss or 0.0 for one in known), sum(one.samples for one in known)
    return {"loss": total / samples} if samples else {}


def figures(scores: Iterable[Score | None]) -> dict[str, float]:
    """What is said beside accuracy: `mean_iou` of pixels, a mean over networks, or `perplexity` of next tokens."""
    known = [one for one in scores if one is not None]
    if maps := [mean_iou(one.confusion) for one in known if one.confusion is not None]:
        return {"mean_iou": sum(maps) / len(maps)}
    if texts := [one for one in known if one.surprise is not None and one.samples]:
        surprise, tokens = sum(one.surprise or 0.0 for one in texts), sum(one.samples for one in texts)
        return {"perplexity": perplexity(surprise, tokens)}
    return {}


def perplexity(surprise: float, tokens: int) -> float:
    """Among how many equally likely tokens the network, on average, still had to choose: e to the mean surprise."""
    return exp(min(surprise / max(1, tokens), 700.0))  # what is lost altogether is a large number, not an error


def score(found: Tensor, truth: Tensor, classes: int) -> Score:
    hit = found == truth
    right, count = int(hit.sum()), found.numel()
    by_class = torch.stack([y.bincount(minlength=classes) for y in (truth[hit], truth)])
    return Score(right, count, by_class=by_class.cpu())


def confusion(found: Tensor, truth: Tensor, classes: int) -> Tensor:
    """How many pixels of each class (row) were taken for which (column); those without a label are left out."""
    judged = truth != NO_LABEL
    both = truth[judged].long() * classes + found[judged]
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
