"""Sequential split learning: the next client starts where the last one stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .base import Rule, Update


@dataclass(frozen=True, repr=False)
class Latest(Rule):
    """The last client's weights and optimizer state, handed on as they are (relay)."""

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
        return dict(updates[-1].state if updates else current)
