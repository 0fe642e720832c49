"""Optimizers as specs: each side of the cut builds its own."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ...core.spec import Spec

__all__ = ["SGD", "Adam"]


@dataclass(frozen=True, repr=False)
class Optimizer(Spec):
    """How one side steps. `lr` is the rate at the schedule's factor 1."""

    lr: float = 1e-3

    def __post_init__(self) -> None:
        if not isinstance(self.lr, int | float) or not 0 < self.lr < float("inf"):
            raise ValueError(f"the learning rate is a number above 0; got {self.lr!r}")

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient times the rate: how far weights moved tells their gradient."""
        return False

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The torch optimizer over what trains, or None where nothing does."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        return self._build(trainable) if trainable else None

    def _build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def plain(self) -> bool:
        return self.momentum == 0

    def _build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, self.lr, self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Adam; `amsgrad` as in UnSplit's and LightSplit's MNIST runs."""

    lr: float = 1e-3
    weight_decay: float = 0.0
    amsgrad: bool = False

    def _build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        # On a GPU its step counters lie there too, captured or not: the same bits either way.
        on_device = all(parameter.is_cuda for parameter in parameters)
        return torch.optim.Adam(
            parameters, self.lr, weight_decay=self.weight_decay, amsgrad=self.amsgrad, capturable=on_device
        )


def set_rate(optimizer: torch.optim.Optimizer | None, rate: float) -> None:
    if optimizer is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate
