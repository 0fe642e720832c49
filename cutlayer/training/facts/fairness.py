"""How a run went for each client: what it holds, what it did, and how well the network serves what it holds.

A client's accuracy is that on the test set with classes weighted as in its own training data: what it may expect on
data like its own. It follows from the accuracy by class, so that a thousand clients cost one evaluation.
"""

from math import ceil
from statistics import mean, pstdev
from typing import Any

from torch import Tensor


def fairness(accuracies: list[float | None]) -> dict[str, Any]:
    """How unequal clients fare. The worst tenth is the mean over that many clients, at least one."""
    known = sorted((accuracy, place) for place, accuracy in enumerate(accuracies) if accuracy is not None)
    if not known:
        return {}
    values = [accuracy for accuracy, _ in known]
    return {
        "mean": mean(values),
        "spread": values[-1] - values[0],
        "deviation": pstdev(values),
        "best": values[-1],
        "best_client": known[-1][1],
        "worst": values[0],
        "worst_client": known[0][1],
        "worst_tenth": mean(values[: ceil(len(values) / 10)]),
    }


def expected_accuracies(counts: Tensor, by_class: Tensor) -> list[float | None]:
    """The accuracy of clients with so many samples of each class, of one network."""
    right, seen = by_class.double()
    weights = counts.double() * (seen > 0)  # a class without test samples says nothing
    total = weights.sum(1)
    found = (weights @ (right / seen.clamp(min=1))) / total.clamp(min=1)
    return [float(one) if some else None for one, some in zip(found, total, strict=True)]
