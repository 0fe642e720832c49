"""Attacks, one idea a file: what a server can find out from what it sees."""

from ..batch import Task
from .base import Attack as Attack
from .base import Attacker as Attacker
from .base import Knowledge as Knowledge
from .base import KnownGuard as KnownGuard
from .decoder import Decoder

__all__ = ["Decoder"]

BUDGETS = ("quick", "standard", "paper")


def suite(budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
    """Every attack there is, at the sizes of a budget."""
    if budget not in BUDGETS:
        raise ValueError(f"--budget is one of {', '.join(BUDGETS)}; got {budget!r}")
    return [attack for name in __all__ for attack in globals()[name].suite(budget, task, labels_stay_home)]
