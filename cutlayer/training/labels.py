"""Labels for every pixel: whether a plan fits them, and how well they were found."""

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
