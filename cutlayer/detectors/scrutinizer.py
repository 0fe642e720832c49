"""Gradients Scrutinizer (Fu et al. 2023): gradients of the same class are alike, those of a hijacker are not."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, e, exp, isfinite, log, sqrt

import numpy as np
import torch
from torch import Tensor

from .base import ClientContext, Detector, StepView, Watch


@dataclass(frozen=True, repr=False)
class GradientScrutinizer(Detector):
    """Compares gradients at the cut within classes and across: an honest server tells classes apart in them.

    Every `every` steps after `warm`, from all steps so far: how far apart the two means are, how smooth their course
    is and how little they overlap. The alarm is a mean of the last `vote` scores below `threshold` (published: one
    score below 0.5, every 50 steps, from step 450 on). It looks no further than `until`: a network that knows its
    training data tells their classes apart less and less, with an honest server as well. Passive attackers answer
    honestly and cannot be seen by it.
    """

    threshold: float = 0.25
    every: int = 10
    warm: int = 30  # steps before the first score: at the start nothing is told apart yet
    vote: int = 5
    until: int = 500

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold is the score below which it stops, in (0, 1); got {self.threshold}")
        if not isinstance(self.every, int) or self.every < 1 or not isinstance(self.warm, int) or self.warm < 3:
            raise ValueError(f"every is at least 1 step and warm at least 3; got {self.every} and {self.warm}")
        if not isinstance(self.vote, int) or self.vote < 1:
            raise ValueError(f"vote is over how many scores the mean is taken, at least 1; got {self.vote!r}")
        if not isinstance(self.until, int) or self.until < self.warm:
            raise ValueError(f"until is the last step it looks at, not before warm={self.warm}; got {self.until!r}")

    def refuse_unfit(self, context: ClientContext) -> None:
        if not context.apart:
            raise ValueError(
                f"{self!r} compares the gradients of single samples of one class each, and with this guard or these "
                "labels there are none: take SplitGuard() or OutlierGradients()"
            )
        classes = context.task.classes
        least = ceil((1 + sqrt(1 + 8 * classes)) / 2)  # B (B - 1) / 2 pairs, one in `classes` of them alike
        if context.batch < least:
            raise ValueError(
                f"{self!r} compares samples of one class: with {classes} classes a batch of {least} has such a pair; "
                f"got batches of {context.batch}"
            )

    def watch(self, context: ClientContext) -> Watch:
        return _Scrutiny(self)


class _Scrutiny(Watch):
    def __init__(self, spec: GradientScrutinizer):
        super().__init__()
        self.spec = spec
        self._same: list[float] = []
        self._different: list[float] = []
        self._spreads = (0.0, 0.0)
        self._scores: list[float] = []

    def look(self, look: StepView) -> None:
        if look.dz is None or look.fake or len(self._same) >= self.spec.until:
            return
        same, different = similarities(look.dz, look.y)
        if not len(same) or not len(different) or not isfinite(float(same.sum() + different.sum())):
            return  # a batch of one class says nothing; lost numbers are the training's to report
        self._same.append(float(same.mean()))
        self._different.append(float(different.mean()))
        self._spreads = float(same.std(correction=0)), float(different.std(correction=0))
        count = len(self._same)
        if count < self.spec.warm or count % self.spec.every:
            return
        self._scores = [*self._scores, score(self._same, self._different, self._spreads)][-self.spec.vote :]
        self.score = sum(self._scores) / len(self._scores)
        if self.score < self.spec.threshold:
            self.alarm = (
                f"after step {look.step} the gradients tell classes apart with a score of {self.score:.3f}, below "
                f"{self.spec.threshold}: this server does not train the task it was given"
            )

    def tensors(self) -> dict[str, Tensor]:
        return {
            "same": torch.tensor(self._same, dtype=torch.float64),
            "different": torch.tensor(self._different, dtype=torch.float64),
            "spreads": torch.tensor(self._spreads, dtype=torch.float64),
            "scores": torch.tensor(self._scores, dtype=torch.float64),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._same, self._different = tensors["same"].tolist(), tensors["different"].tolist()
        self._spreads = (float(tensors["spreads"][0]), float(tensors["spreads"][1]))
        self._scores = tensors["scores"].tolist()


def similarities(dz: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """½ + ½ cos of all ordered pairs: (of the same class, of different ones)."""
    rows = torch.nn.functional.normalize(dz.flatten(1).double(), dim=1)
    alike = 0.5 + 0.5 * rows @ rows.T
    one_class = y[:, None] == y[None, :]
    others = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    return alike[one_class & others], alike[~one_class]


def score(same: list[float], different: list[float], spreads: tuple[float, float]) -> float:
    """Fu et al. 2023, Sec. 4: set gap, fitting error and overlap of the two courses, as one number in (0, 1)."""
    mean_s, mean_d = same[-1], different[-1]
    both = mean_s + mean_d
    gap = (mean_s - mean_d) / both if both > 0 else 0.0
    error = (_misfit(same) + _misfit(different)) / 2
    low_s, high_s, low_d, high_d = mean_s - spreads[0], mean_s + spreads[0], mean_d - spreads[1], mean_d + spreads[1]
    common = max(0.0, min(high_s, high_d) - max(low_s, low_d))
    hull = max(high_s, high_d) - min(low_s, low_d)
    overlap = common / hull if hull > 0 else 1.0
    signed = (1.0 if gap >= 0 else -1.0) * abs(gap) ** 0.4
    inside = signed * -log(7 * error + e**-2) * -log(overlap + e**-1) - 0.7
    return 1 / (1 + exp(-5 * inside))


def _misfit(course: list[float]) -> float:
    """How far a parabola misses a course, root mean square."""
    steps = np.linspace(0.0, 1.0, len(course))
    fitted = np.polyval(np.polyfit(steps, course, 2), steps)
    return float(np.sqrt(np.mean((np.asarray(course) - fitted) ** 2)))
