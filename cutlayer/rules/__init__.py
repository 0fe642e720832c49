"""Rules, one idea a file: which weights the next turn starts from."""

from .adaptive import FedAdagrad, FedAdam, FedYogi
from .base import Rule as Rule
from .base import Update as Update
from .base import sound as sound
from .diloco import DiLoCo
from .fedavg import FedAvg, FedAvgM
from .fedmuon import FedMuon
from .fedprox import FedProx
from .latest import Latest
from .parts.correction import Correction as Correction
from .robust import Krum, Median, TrimmedMean
from .rollback import Rollback
from .scaffold import Scaffold

__all__ = [
    "DiLoCo",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMuon",
    "FedProx",
    "FedYogi",
    "Krum",
    "Latest",
    "Median",
    "Rollback",
    "Scaffold",
    "TrimmedMean",
]
