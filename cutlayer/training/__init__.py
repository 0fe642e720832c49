"""A plan and what follows from it: parties, steps, the order of turns, and facts about a run.

What a recipe needs beside guards, networks and data is exported here.
"""

from typing import TYPE_CHECKING

from ..core.lazy import lazy as _lazy

_HOMES = {
    "Plan": "plan.plan",
    "cut_shapes": "plan.shapes",
    "SGD": "plan.optimizers",
    "Adam": "plan.optimizers",
    "Constant": "plan.lr_schedules",
    "Cosine": "plan.lr_schedules",
    "OneCycle": "plan.lr_schedules",
    "Steps": "plan.lr_schedules",
    "Relay": "plan.schedule",
    "SplitFed": "plan.schedule",
    "Wave": "plan.schedule",
    "epoch_rounds": "plan.schedule",
    "AllActive": "plan.roles",
    "Frozen": "plan.roles",
    "SendOnce": "plan.roles",
    "Compression": "plan.plan",
    "Pretrained": "plan.pretrained",
    "Protocol": "protocols",
    "Cut": "protocols",
    "build_client": "build",
    "build_server": "build",
    "learn": "step",
    "Link": "facts.link",
    "privacy": "facts.privacy",
    "sentence": "facts.privacy",
    "breakdown": "facts.memory",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from .build import build_client as build_client
    from .build import build_server as build_server
    from .facts.link import Link as Link
    from .facts.memory import breakdown as breakdown
    from .facts.privacy import privacy as privacy
    from .facts.privacy import sentence as sentence
    from .plan.lr_schedules import Constant as Constant
    from .plan.lr_schedules import Cosine as Cosine
    from .plan.lr_schedules import OneCycle as OneCycle
    from .plan.lr_schedules import Steps as Steps
    from .plan.optimizers import SGD as SGD
    from .plan.optimizers import Adam as Adam
    from .plan.plan import Compression as Compression
    from .plan.plan import Plan as Plan
    from .plan.pretrained import Pretrained as Pretrained
    from .plan.roles import AllActive as AllActive
    from .plan.roles import Frozen as Frozen
    from .plan.roles import SendOnce as SendOnce
    from .plan.schedule import Relay as Relay
    from .plan.schedule import SplitFed as SplitFed
    from .plan.schedule import Wave as Wave
    from .plan.schedule import epoch_rounds as epoch_rounds
    from .plan.shapes import cut_shapes as cut_shapes
    from .protocols import Cut as Cut
    from .protocols import Protocol as Protocol
    from .step import learn as learn
else:
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
