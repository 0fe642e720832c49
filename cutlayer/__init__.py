"""Cutlayer: split learning that trains, guards, attacks and audits the cut.

The public API is what is named here, and what the rooms `guards`, `attacks`, `detectors`, `rules`, `nets`, `data`,
`training`, `audit`, `metrics` and `wire` export. Everything else may change without notice.
"""

from typing import TYPE_CHECKING

from .core.lazy import lazy as _lazy

__version__ = "0.2.0"

_HOMES = {
    "Batch": "core.batch",
    "Task": "core.batch",
    "Features": "core.features",
    "Message": "core.message",
    "Kind": "core.message",
    "through": "core.message",
    "Remote": "core.remote",
    "Server": "core.server",
    **dict.fromkeys(("Split", "VanillaNetwork", "UShapedNetwork"), "core.split"),
    "BypassNetwork": "training.protocols.bypass",
    "FederatedNetwork": "training.protocols.federated",
    **dict.fromkeys(("Vanilla", "UShaped", "Bypass", "Federated", "Alone"), "training.protocols"),
    "Plan": "training.plan.plan",
    "LocalRun": "engines.local.run",
    "train": "engines.local.start",
    "Following": "engines.local.start",
    "predict": "engines.predict",
    "Inputs": "engines.predict",
    "Over": "engines.predict",
    "cut": "nets",
    "spec": "core.spec",
    "names": "core.spec",
    **dict.fromkeys(
        ("guards", "attacks", "detectors", "rules", "nets", "data", "training", "audit", "metrics", "wire"), ""
    ),
}
__all__ = sorted([*_HOMES, "__version__"])

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from . import attacks as attacks
    from . import audit as audit
    from . import data as data
    from . import detectors as detectors
    from . import guards as guards
    from . import metrics as metrics
    from . import nets as nets
    from . import rules as rules
    from . import training as training
    from . import wire as wire
    from .core.batch import Batch as Batch
    from .core.batch import Task as Task
    from .core.features import Features as Features
    from .core.message import Kind as Kind
    from .core.message import Message as Message
    from .core.message import through as through
    from .core.remote import Remote as Remote
    from .core.server import Server as Server
    from .core.spec import names as names
    from .core.spec import spec as spec
    from .core.split import Split as Split
    from .core.split import UShapedNetwork as UShapedNetwork
    from .core.split import VanillaNetwork as VanillaNetwork
    from .engines.local.run import LocalRun as LocalRun
    from .engines.local.start import Following as Following
    from .engines.local.start import train as train
    from .engines.predict import Inputs as Inputs
    from .engines.predict import Over as Over
    from .engines.predict import predict as predict
    from .nets import cut as cut
    from .training.plan.plan import Plan as Plan
    from .training.protocols import Alone as Alone
    from .training.protocols import Bypass as Bypass
    from .training.protocols import Federated as Federated
    from .training.protocols import UShaped as UShaped
    from .training.protocols import Vanilla as Vanilla
    from .training.protocols.bypass import BypassNetwork as BypassNetwork
    from .training.protocols.federated import FederatedNetwork as FederatedNetwork
else:
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
