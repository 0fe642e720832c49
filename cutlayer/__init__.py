"""Cutlayer: split learning that trains, guards, attacks and audits the cut.

The public API is what is named here, and what the rooms `guards`, `attacks`, `detectors`, `rules`, `nets`, `data`,
`training`, `audit`, `metrics` and `wire` export. Everything else may change without notice.
"""

from .core.lazy import lazy

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

__getattr__ = lazy(__name__, _HOMES)
