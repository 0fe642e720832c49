"""Rules, one idea a file: which weights the next turn starts from.

An import line here is all that registers one: `__all__`, and with it every name a person may type, follows.
"""

from ..core.spec import plug_ins
from .adaptive import FedAdagrad as FedAdagrad
from .adaptive import FedAdam as FedAdam
from .adaptive import FedYogi as FedYogi
from .base import Rule as Rule
from .base import Update as Update
from .base import sound as sound
from .diloco import DiLoCo as DiLoCo
from .fedavg import FedAvg as FedAvg
from .fedavg import FedAvgM as FedAvgM
from .fedmuon import FedMuon as FedMuon
from .fedprox import FedProx as FedProx
from .latest import Latest as Latest
from .parts.correction import Correction as Correction
from .parts.merging import Merging as Merging
from .parts.merging import State as State
from .parts.merging import like as like
from .robust import Krum as Krum
from .robust import Median as Median
from .robust import TrimmedMean as TrimmedMean
from .rollback import Rollback as Rollback
from .scaffold import Scaffold as Scaffold

__all__ = plug_ins(globals(), Rule, Merging)
