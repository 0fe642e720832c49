"""Attacks, one idea a file: what a server can find out from what it sees.

An import line here is all that registers one: `__all__`, and with it every name a person may type, follows.
"""

from collections.abc import Sequence

from ..core.batch import Task
from ..core.spec import plug_ins
from ..guards.base import Guard
from .attribute import AttributeInference as AttributeInference
from .base import Attack as Attack
from .base import Attacker as Attacker
from .base import Knowledge as Knowledge
from .base import KnownGuard as KnownGuard
from .base import Pass as Pass
from .base import smashed as smashed
from .bisr import BiSR as BiSR
from .cipher import Cipher as Cipher
from .decoder import Decoder as Decoder
from .dictionary import Dictionary as Dictionary
from .diffusion import DiffusionPrior as DiffusionPrior
from .fora import FORA as FORA
from .fsa import FeatureSniffer as FeatureSniffer
from .fsha import FSHA as FSHA
from .gradient_matching import GradientMatching as GradientMatching
from .headswap import HeadSwap as HeadSwap
from .labels import LabelClustering as LabelClustering
from .labels import TailEnumeration as TailEnumeration
from .linked import Linked as Linked
from .membership import Membership as Membership
from .pcat import PCAT as PCAT
from .retrieval import Retrieval as Retrieval
from .sdar import SDAR as SDAR
from .sdar import SDARLabels as SDARLabels
from .token_gradients import TokenGradients as TokenGradients
from .unsplit import UnSplit as UnSplit

__all__ = plug_ins(globals(), Attack)


def usual(guards: Sequence[Guard], task: Task) -> list[Attack]:
    """What an audit takes where nothing is asked for: the white-box reference, and where a guard draws anew, the one
    that reads several messages of a sample. Of texts also what costs next to nothing, if it has something to find."""
    if task.kind == "texts":
        return [Decoder(), *(one for one in (Dictionary(), TokenGradients()) if one.why_not(task, True) is None)]
    return [Decoder(), *([Linked()] if any(guard.draws_anew for guard in guards) else [])]


BUDGETS = ("quick", "standard", "paper")


def suite(budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
    """Every attack there is, at the sizes of a budget."""
    if budget not in BUDGETS:
        raise ValueError(f"--budget is one of {', '.join(BUDGETS)}; got {budget!r}")
    return [attack for name in __all__ for attack in globals()[name].suite(budget, task, labels_stay_home)]
