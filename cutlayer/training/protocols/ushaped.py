"""U-shaped split learning: features come back, and the client finishes."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...core.guard import GuardModule
from ...core.split import Split, UShapedNetwork
from .base import Cut, Protocol


@dataclass(frozen=True, repr=False)
class UShaped(Protocol):
    """The labels stay home: features come back and the client finishes."""

    can_send_once: ClassVar[bool] = True

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        return UShapedNetwork(head, tail, guard)
