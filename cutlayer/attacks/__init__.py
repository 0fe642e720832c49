"""Attacks, one idea a file: what a server can find out from what it sees."""

from ..core.batch import Task
from .attribute import AttributeInference
from .base import Attack as Attack
from .base import Attacker as Attacker
from .base import Knowledge as Knowledge
from .base import KnownGuard as KnownGuard
from .decoder import Decoder
from .fora import FORA
from .fsa import FeatureSniffer
from .fsha import FSHA
from .labels import LabelClustering, TailEnumeration
from .membership import Membership
from .pcat import PCAT
from .sdar import SDAR, SDARLabels
from .unsplit import UnSplit

__all__ = [
    "FORA",
    "FSHA",
    "PCAT",
    "SDAR",
    "AttributeInference",
    "Decoder",
    "FeatureSniffer",
    "LabelClustering",
    "Membership",
    "SDARLabels",
    "TailEnumeration",
    "UnSplit",
]

BUDGETS = ("quick", "standard", "paper")


def suite(budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
    """Every attack there is, at the sizes of a budget."""
    if budget not in BUDGETS:
        raise ValueError(f"--budget is one of {', '.join(BUDGETS)}; got {budget!r}")
    return [attack for name in __all__ for attack in globals()[name].suite(budget, task, labels_stay_home)]
