"""SplitGuard (Erdoğan et al. 2022): a server that trains the task notices wrong labels, a hijacker does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import acos, exp

import torch
from torch import Tensor

from ..core.seeds import derive, generator
from .base import ClientContext, Detector, StepView, Watch


@dataclass(frozen=True, repr=False)
class SplitGuard(Detector):
    """Now and then a batch with wrong labels, from which the client learns nothing: its gradients must stand out.

    All labels of a fake batch are shifted by one number that leaves none right. The score compares the mean gradient
    of the first layer over fakes with those of two random halves of the honest batches since the first fake was due:
    towards 1 with an honest server, about ¼ with one that ignores labels. The alarm is a mean of the last `vote`
    scores below `threshold` (published: about 0.9, and from all batches).
    A server that recognises fakes by a body of its own evades it (SplitSpy).
    """

    threshold: float = 0.45
    share: float = 0.1  # of the steps are fakes
    warm: int = 20  # honest steps before the first
    vote: int = 3
    least: int = 5  # honest batches in each half before it says anything: means of fewer differ by chance alone

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1 or not 0 < self.share < 1:
            raise ValueError(f"threshold and share are in (0, 1); got {self.threshold} and {self.share}")
        if not isinstance(self.warm, int) or self.warm < 2 or not isinstance(self.vote, int) or self.vote < 1:
            raise ValueError(f"warm is at least 2 steps and vote at least 1 score; got {self.warm} and {self.vote}")
        if not isinstance(self.least, int) or self.least < 1:
            raise ValueError(
                f"least is how many honest batches each half has at first, at least 1; got {self.least!r}"
            )

    def refuse_unfit(self, context: ClientContext) -> None:
        if context.task.classes < 3:
            raise ValueError(
                f"{self!r} shifts labels by 1 up to two less than there are classes: that takes 3 classes or more; "
                f"this task has {context.task.classes}"
            )

    def watch(self, context: ClientContext) -> Watch:
        return _Probing(self, context)


class _Probing(Watch):
    def __init__(self, spec: SplitGuard, context: ClientContext):
        super().__init__()
        self.spec, self.classes, self.seed = spec, context.task.classes, context.seed
        self._sums: dict[str, Tensor] = {}
        self._norms: dict[str, float] = {}
        self._counts = {"fake": 0, "one": 0, "other": 0}
        self._scores: list[float] = []

    def probe(self, step: int, y: Tensor) -> Tensor | None:
        draw = generator(derive(self.seed, "probe", step))
        if step < self.spec.warm or float(torch.rand((), generator=draw)) >= self.spec.share:
            return None
        shift = int(torch.randint(1, self.classes - 1, (), generator=draw))
        return (y + shift) % self.classes

    def look(self, look: StepView) -> None:
        if look.step < self.spec.warm:
            return  # gradients shrink while a network learns: those before the first fake compare with none
        coin = float(torch.rand((), generator=generator(derive(self.seed, "half", look.step)))) < 0.5
        kind = "fake" if look.fake else "one" if coin else "other"
        first = look.first.double().cpu()
        self._sums[kind] = self._sums.get(kind, torch.zeros_like(first)) + first
        self._norms[kind] = self._norms.get(kind, 0.0) + float(first.norm())
        self._counts[kind] += 1
        if look.fake and min(self._counts["one"], self._counts["other"]) >= self.spec.least:
            self._scores.append(self._mark())
            last = self._scores[-self.spec.vote :]
            self.score = sum(last) / len(last)
            if len(last) == self.spec.vote and self.score < self.spec.threshold:
                self.alarm = (
                    f"after step {look.step} batches with wrong labels get the gradients of right ones: a mean score "
                    f"of {self.score:.3f} in the last {self.spec.vote} probes, below {self.spec.threshold}"
                )

    def tensors(self) -> dict[str, Tensor]:
        return {
            **{f"sum.{kind}": total for kind, total in self._sums.items()},
            "norms": torch.tensor([self._norms.get(kind, 0.0) for kind in self._counts], dtype=torch.float64),
            "counts": torch.tensor(list(self._counts.values())),
            "scores": torch.tensor(self._scores[-self.spec.vote :], dtype=torch.float64),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._counts = dict(zip(self._counts, tensors["counts"].tolist(), strict=True))
        self._norms = dict(zip(self._counts, tensors["norms"].tolist(), strict=True))
        self._sums = {kind: tensors[f"sum.{kind}"].cpu() for kind in self._counts if f"sum.{kind}" in tensors}
        self._scores = tensors["scores"].tolist()

    def _mark(self) -> float:
        """SG = σ(5 S)², S = θ(F, R) dF / (dF + dR) − θ(R₁, R₂) dR / (dF + dR)."""
        mean = {kind: self._sums[kind] / self._counts[kind] for kind in self._sums}
        norm = {kind: self._norms[kind] / self._counts[kind] for kind in self._norms}
        regular = (mean["one"] + mean["other"]) / 2
        from_fake = abs(norm["fake"] - (norm["one"] + norm["other"]) / 2)
        from_chance = abs(norm["one"] - norm["other"])
        whole = max(from_fake + from_chance, 1e-300)
        towards = _angle(mean["fake"], regular) * from_fake
        s = (towards - _angle(mean["one"], mean["other"]) * from_chance) / whole
        return 1 / (1 + exp(-5 * s)) ** 2


def _angle(one: Tensor, other: Tensor) -> float:
    """In radians."""
    lengths = float(one.norm()) * float(other.norm())
    return acos(max(-1.0, min(1.0, float(one @ other) / lengths))) if lengths else 0.0
