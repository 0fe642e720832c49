"""SplitOut (Erdoğan et al. 2023): gradients that do not look like any of an honest rehearsal."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import ClientContext, Detector, StepView, Watch

OUTLIER = 1.5  # the factor above which Breunig et al. call a point an outlier


@dataclass(frozen=True, repr=False)
class OutlierGradients(Detector):
    """Rehearses with an honest server of the client's own making, and marks gradients unlike any of the rehearsal.

    The client trains the whole network on its own samples for `rehearsal` steps, so it has to hold the body for that
    long. A local outlier factor (Breunig et al. 2000, all neighbours) is fitted to the gradients of the first layer.
    The alarm is a `window` of steps of which more than `threshold` are outliers.
    """

    threshold: float = 0.5
    rehearsal: int = 100
    window: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold is a share of the window, in (0, 1); got {self.threshold}")
        if not isinstance(self.rehearsal, int) or self.rehearsal < 10:
            raise ValueError(f"rehearsal is at least 10 steps, to have neighbours; got {self.rehearsal!r}")
        if not isinstance(self.window, int) or self.window < 1:
            raise ValueError(f"window is at least 1 step; got {self.window!r}")

    def watch(self, context: ClientContext) -> Watch:
        return _Outliers(self, context)


class _Outliers(Watch):
    def __init__(self, spec: OutlierGradients, context: ClientContext):
        super().__init__()
        self.spec = spec
        self._factor = LocalOutlierFactor(np.stack([_flat(look) for look in context.honest(spec.rehearsal)]))
        self._last: deque[bool] = deque(maxlen=spec.window)

    def look(self, look: StepView) -> None:
        if look.fake:
            return
        # A factor that is no number is that of gradients which are none.
        self._last.append(not self._factor(_flat(look)) <= OUTLIER)
        if len(self._last) < self.spec.window:
            return
        share = sum(self._last) / len(self._last)
        self.score = 1 - share
        if share > self.spec.threshold:
            self.alarm = (
                f"after step {look.step}, {share:.0%} of the last {self.spec.window} gradients are unlike any of the "
                "honest rehearsal"
            )

    def tensors(self) -> dict[str, Tensor]:
        return {"last": torch.tensor(list(self._last), dtype=torch.bool)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._last = deque(tensors["last"].tolist(), maxlen=self.spec.window)


def _flat(look: StepView) -> NDArray[np.float64]:
    return look.first.double().cpu().numpy()


class LocalOutlierFactor:
    """How much thinner the points lie around a new one than around its neighbours, of which it has all but one.

    About 1 among the known points and large far from them (Breunig et al. 2000, Def. 5 to 7).
    """

    def __init__(self, known: NDArray[np.float64]):
        self._known, self._most = known, len(known) - 1
        apart = np.stack([np.linalg.norm(known - one, axis=1) for one in known])
        self._reach = apart.max(1)  # to the farthest of all others
        reached = np.maximum(apart, self._reach[None, :])
        np.fill_diagonal(reached, 0.0)  # nobody is its own neighbour
        self._density = self._most / (reached.sum(1) + 1e-10 * self._most)

    def __call__(self, one: NDArray[np.float64]) -> float:
        apart = np.linalg.norm(self._known - one, axis=1)
        near = np.argsort(apart, kind="stable")[: self._most]
        density = 1 / (np.maximum(apart[near], self._reach[near]).mean() + 1e-10)
        return float(self._density[near].mean() / density)
