"""Sequential split learning: the next client starts where the last one stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import NET, OPTIMIZER, STAT, Rule, Update


@dataclass(frozen=True, repr=False)
class Latest(Rule):
    """The last client's weights and optimizer state, handed on as they are (relay)."""

    merges: ClassVar[bool] = False
    travels: ClassVar[tuple[str, ...]] = (NET, STAT, OPTIMIZER)

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
        return dict(updates[-1].state if updates else current)
