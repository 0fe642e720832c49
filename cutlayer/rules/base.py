"""A rule decides which client weights the next turn starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..spec import Spec


class Update(NamedTuple):
    """What a client brings back from its turn, and on how many samples it learnt."""

    state: Mapping[str, Tensor]
    samples: int


@dataclass(frozen=True, repr=False)
class Rule(Spec):
    """`rule(current, updates) -> state`. Never writes into what it is given."""

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
        raise NotImplementedError
