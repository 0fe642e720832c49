"""Learning-rate schedules as specs: a factor on each side's own rate, by epoch."""

from dataclasses import dataclass
from math import cos, pi

from ...core.spec import Spec

__all__ = ["Constant", "Cosine", "Steps"]


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
class Steps(Schedule):
    """The rate times `factor_per_step` every `every` epochs."""

    every: int
    factor_per_step: float = 0.1

    def factor(self, epoch: int, epochs: int) -> float:
        return self.factor_per_step ** (epoch // self.every)
