"""Learning-rate schedules as specs: a factor on each side's own rate, by epoch."""

from dataclasses import dataclass
from math import cos, pi

from ...core.spec import Spec

__all__ = ["Constant", "Cosine", "OneCycle", "Steps"]


@dataclass(frozen=True, repr=False)
class Schedule(Spec):
    """`factor(epoch, epochs)` multiplies the learning rates of that epoch."""

    def factor(self, epoch: int, epochs: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same learning rate throughout."""

    def factor(self, epoch: int, epochs: int) -> float:
        return 1.0


@dataclass(frozen=True, repr=False)
class Cosine(Schedule):
    """Half a cosine from the full rate down to `floor` of it at the last epoch."""

    floor: float = 0.0

    def factor(self, epoch: int, epochs: int) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + cos(pi * epoch / max(1, epochs)))


@dataclass(frozen=True, repr=False)
class OneCycle(Schedule):
    """Up from a tenth of the full rate over the first `warm` share of the epochs, then half a cosine down to none."""

    warm: float = 0.25

    def __post_init__(self) -> None:
        if not isinstance(self.warm, int | float) or not 0 < self.warm < 1:
            raise ValueError(f"warm is the share of epochs in which the rate rises, in (0, 1); got {self.warm!r}")

    def factor(self, epoch: int, epochs: int) -> float:
        place = (epoch + 0.5) / max(1, epochs)
        if place < self.warm:
            return 0.1 + 0.9 * place / self.warm
        return 0.5 * (1 + cos(pi * (place - self.warm) / (1 - self.warm)))


@dataclass(frozen=True, repr=False)
class Steps(Schedule):
    """The rate times `factor_per_step` every `every` epochs."""

    every: int
    factor_per_step: float = 0.1

    def factor(self, epoch: int, epochs: int) -> float:
        return self.factor_per_step ** (epoch // self.every)
