"""Plain federated learning, to compare with."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...core.guard import GuardModule
from ...core.split import FederatedNetwork, Split
from .base import Cut, Protocol


@dataclass(frozen=True, repr=False)
class Federated(Protocol):
    """No cut: the whole network is the client's and only weights travel (plain federated learning, a baseline)."""

    crosses: ClassVar[bool] = False

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        return FederatedNetwork(head, tail, guard)
