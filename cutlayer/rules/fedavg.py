"""Federated averaging (McMahan et al. 2017, Alg. 1), and with momentum on the server (Hsu et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

from .base import NET, check_number
from .parts.merging import Merging, State, like, momentum


@dataclass(frozen=True, repr=False)
class FedAvg(Merging):
    """The mean of the clients' weights, by their samples: x − η g.

    `lr` below 1 goes only a part of the way; above 1 it goes further than the mean.
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf, fix=" (1: the mean itself)")

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        return {NET + name: like(now, now.double() - self.lr * g)}


@dataclass(frozen=True, repr=False)
class FedAvgM(Merging):
    """FedAvg with momentum on the server: v = β v + g, x − η v."""

    lr: float = 0.3
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf)
        check_number(self, "momentum", 0, 1, closed=True)

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        v, kept = momentum(self.momentum, name, now, g, current)
        return {NET + name: like(now, now.double() - self.lr * v), **kept}
