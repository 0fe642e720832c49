"""Detectors, one idea a file: what a client can notice of a server that does not do what it should."""

from .base import Detector as Detector
from .base import Ground as Ground
from .base import Look as Look
from .base import Own as Own
from .base import Sent as Sent
from .base import Watch as Watch
from .consensus import ConsensusCosine
from .leak_meter import LeakMeter
from .outliers import OutlierGradients
from .parts.guard_swap import replaced as replaced
from .parts.server_context import Council as Council
from .parts.server_context import ServerDetector as ServerDetector
from .parts.server_context import ServerWatch as ServerWatch
from .scrutinizer import GradientScrutinizer
from .splitguard import SplitGuard

__all__ = ["ConsensusCosine", "GradientScrutinizer", "LeakMeter", "OutlierGradients", "SplitGuard"]
