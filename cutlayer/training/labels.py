"""Labels for every pixel: whether a plan fits them, and how well they were found."""

import torch
from torch import Tensor

from ..core.batch import Task
from ..nets.base import scores_shape
from .plan.plan import Plan


def label_shape(plan: Plan, task: Task) -> tuple[int, ...]:
    """The shape of one sample's label, by what the network scores: () for a class, (height, width) for a map."""
    return scores_shape(plan.net, task.shape, task.classes)[1:]


def why_unfit_labels(plan: Plan, task: Task, y: Tensor) -> str | None:
    """Why a plan cannot learn these labels, as one sentence; None: it can."""
    given, wanted = tuple(y.shape[1:]), label_shape(plan, task)
    if given and plan.guard.reads_classes:
        return f"{plan.guard} goes by the class of a sample, and here every pixel has its own: choose another guard"
    if given == wanted:
        return None
    if not wanted:
        return f"these labels are one class a pixel, and {plan.net} gives one a sample: take a Segmenter"
    if not given:
        return f"{plan.net} gives one class a pixel, and these labels are one a sample: try --data Scenes"
    return f"{plan.net} gives a class to each of {wanted} pixels; the labels have {given}"


def refuse_unfit_labels(plan: Plan, task: Task, y: Tensor) -> None:
    if len(y) and (why := why_unfit_labels(plan, task, y)):
        raise ValueError(why)


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
