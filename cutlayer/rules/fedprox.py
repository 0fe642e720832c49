"""FedProx (Li et al. 2020): clients are pulled back to where the round began."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor, nn

from .base import NET, check_number
from .parts.correction import Correction, add_to_gradient
from .parts.merging import Merging, State, like


@dataclass(frozen=True, repr=False)
class FedProx(Merging):
    """FedAvg of clients that add μ/2 ‖w − x‖² to their loss, so that they stay near x."""

    mu: float = 0.01
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "mu", 0, inf, fix="; FedAvg is this rule without it")
        check_number(self, "lr", 0, inf, fix=" (1: the mean itself)")

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        return {NET + name: like(now, now.double() - self.lr * g)}

    def correction(self) -> Correction:
        return Proximal(self.mu)


class Proximal(Correction):
    """The gradient of the proximal term: μ (w − x)."""

    def __init__(self, mu: float):
        self.mu = mu
        self._began: State = {}

    def start(self, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]) -> None:
        self._began = {name: p.detach().clone() for name, p in parameters.items() if p.requires_grad}

    def adjust(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, began in self._began.items():
            add_to_gradient(parameters[name], self.mu * (parameters[name].detach() - began))
