"""Guards, one idea a file: what a client does to its activations before they leave."""

from .base import Guard as Guard
from .base import NoGuard
from .bottleneck import Bottleneck1x1
from .chain import Chain
from .lightsplit import LightSplit
from .subset import Subset
from .wcc import WCC

__all__ = ["WCC", "Bottleneck1x1", "Chain", "LightSplit", "NoGuard", "Subset"]
