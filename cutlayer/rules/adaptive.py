"""Adaptive server optimizers (Reddi et al. 2021, Alg. 2): a step size of its own for every coordinate.

As there, moments are not corrected for their start, and the second one starts at τ², so that a coordinate nobody has
moved yet is not stepped along at full size by its first noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from .base import NET, check_number
from .parts.merging import Merging, State, like, remembered, to_remember


@dataclass(frozen=True, repr=False)
class _Adaptive(Merging):
    """x − η m / (√v + τ); how v grows is what tells the three apart."""

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = field(default=1e-3, kw_only=True)  # so that beta2 comes right after beta1

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf)
        check_number(self, "beta1", 0, 1, closed=True, fix=" (0: no momentum)")
        check_number(self, "tau", 0, inf, fix="; it keeps small moves from being blown up")

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        """The next second moment."""
        raise NotImplementedError

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        after: State = {}
        m = g
        if self.beta1:
            m = torch.lerp(g, remembered("first", name, g, current), self.beta1)
            after |= to_remember("first", name, m, now)
        v = self.second(remembered("second", name, g, current, self.tau**2), g)
        after |= to_remember("second", name, v, now)
        return {NET + name: like(now, now.double() - self.lr * m / (v.sqrt() + self.tau)), **after}


@dataclass(frozen=True, repr=False)
class FedAdagrad(_Adaptive):
    """Adagrad on the server: v += g², steps that only shrink.

    `beta1` above 0 steps along an average of past moves.
    """

    lr: float = 0.007
    beta1: float = 0.0

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        return v + g.square()


@dataclass(frozen=True, repr=False)
class _Forgetting(_Adaptive):
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "beta2", 0, 1, closed=True)


@dataclass(frozen=True, repr=False)
class FedAdam(_Forgetting):
    """Adam on the server: v = β₂ v + (1 − β₂) g²."""

    lr: float = 0.003

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        return torch.lerp(g.square(), v, self.beta2)


@dataclass(frozen=True, repr=False)
class FedYogi(_Forgetting):
    """Yogi on the server: v moves by (1 − β₂) g² up or down, so that a large move is forgotten slowly."""

    lr: float = 0.002

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        square = g.square()
        return v - (1 - self.beta2) * torch.sign(v - square) * square
