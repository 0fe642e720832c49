"""Vanilla split learning: the server has the labels and the loss."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...core.guard import GuardModule
from ...core.split import Split, VanillaNetwork
from .base import Cut, Protocol


@dataclass(frozen=True, repr=False)
class Vanilla(Protocol):
    """The labels travel with the smashed data, and the server owns the loss."""

    labels_stay_home: ClassVar[bool] = False
    can_send_once: ClassVar[bool] = True

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        return VanillaNetwork(head, tail, guard)
