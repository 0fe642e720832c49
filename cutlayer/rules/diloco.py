"""DiLoCo's outer step (Douillard et al. 2023): Nesterov momentum over what the clients moved."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

from .base import NET, check_number
from .parts.merging import Merging, State, like, momentum


@dataclass(frozen=True, repr=False)
class DiLoCo(Merging):
    """Nesterov momentum on the server, for many local steps: y = β y + g, x − η (g + β y)."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf)
        check_number(self, "momentum", 0, 1, closed=True, fix="; FedAvg(lr=...) is this rule without momentum")

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        y, kept = momentum(self.momentum, name, now, g, current)
        return {NET + name: like(now, now.double() - self.lr * (g + self.momentum * y)), **kept}
