"""Whose body answers a client, and when it steps."""

import torch
from torch import nn

from .state import drop_gradients
from .stepping import step


class Bodies:
    """One body for everybody, which steps at every batch. Rounds have others (`training/bodies.py`)."""

    def __init__(self, body: nn.Module, optimizer: torch.optim.Optimizer | None = None):
        self.body, self.optimizer, self.updates = body, optimizer, 0

    def of(self, client: int) -> nn.Module:
        """The body that answers this client."""
        return self.body

    def version(self, client: int) -> int:
        """Grows with every step: a graph of an older version cannot be used any more."""
        return self.updates

    def learnt(self, client: int, rows: int) -> None:
        """Gradients of a batch of so many rows are in the body: step now, gather them, or step a copy."""
        self.step()

    def step(self) -> None:
        """Once, with the gradients that are in the body."""
        if self.optimizer is not None:
            step(self.optimizer)
            drop_gradients(self.optimizer)
            self.updates += 1

    def forget(self, client: int) -> None:
        """Drop whatever is held for a client that starts anew: gradients of a batch that never came whole."""
        self.body.zero_grad()
