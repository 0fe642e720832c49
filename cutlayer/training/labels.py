"""Labels for every pixel or every place of a text: whether a plan fits them."""

from torch import Tensor

from ..core.batch import Task
from ..nets.base import scores_shape
from .causal import why_looks_ahead
from .plan.plan import Plan


def label_shape(plan: Plan, task: Task) -> tuple[int, ...]:
    """The shape of one sample's label, by what the network scores: () for a class, (height, width) for a map,
    (length,) for next tokens."""
    return scores_shape(plan.net, task.shape, task.classes)[1:]


def why_unfit_labels(plan: Plan, task: Task, y: Tensor) -> str | None:
    """Why a plan cannot learn these labels, as one sentence; None: it can."""
    given, wanted = tuple(y.shape[1:]), label_shape(plan, task)
    by_class = f"goes by the class of a sample, and here every {'place' if task.vocabulary else 'pixel'} has its own"
    if given and plan.guard.reads_classes:
        return f"{plan.guard} {by_class}: choose another guard"
    if given and plan.poison is not None:
        return f"{plan.poison} {by_class}: leave it out"
    if task.vocabulary:
        return _why_unfit_tokens(plan, task, given, wanted)
    if given == wanted:
        return None
    if not wanted:
        return f"these labels are one class a pixel, and {plan.net} gives one a sample: take a Segmenter or DeepLabV3"
    if not given:
        return f"{plan.net} gives one class a pixel, and these labels are one a sample: try --data Scenes"
    return f"{plan.net} gives a class to each of {wanted} pixels; the labels have {given}"


def _why_unfit_tokens(plan: Plan, task: Task, given: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """The same for texts."""
    if given and not wanted:
        return (
            f"these labels are the next token of every place, and {plan.net} gives a class a text: take TextDecoder"
        )
    if wanted and not given:
        return f"{plan.net} names the next token of every place, and these labels are one a text: next_token=True"
    if given != wanted:
        return f"{plan.net} names a token for each of {wanted} places; the labels have {given}"
    if not given:
        return None
    if not plan.protocol.labels_stay_home:
        return (
            "the labels of next tokens are the text itself, and they would travel in the clear in "
            f"{plan.protocol}: take UShaped"
        )
    return why_looks_ahead(plan, task)


def refuse_unfit_labels(plan: Plan, task: Task, y: Tensor) -> None:
    if len(y) and (why := why_unfit_labels(plan, task, y)):
        raise ValueError(why)
