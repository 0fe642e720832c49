"""A plan and what follows from it: parties, steps, the order of turns, and facts about a run.

What a recipe needs beside guards, networks and data is exported here.
"""

from ..core.lazy import lazy

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

__getattr__ = lazy(__name__, _HOMES)
