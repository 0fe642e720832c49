"""Detectors, one idea a file: what a client can notice of a server that does not do what it should."""

from .base import ClientAssets as ClientAssets
from .base import ClientContext as ClientContext
from .base import Detector as Detector
from .base import SentBatch as SentBatch
from .base import StepView as StepView
from .base import Watch as Watch
from .consensus import ConsensusCosine
from .leak_meter import LeakMeter
from .outliers import OutlierGradients
from .parts.guard_swap import swap_guard as swap_guard
from .parts.server_context import ServerContext as ServerContext
from .parts.server_context import ServerDetector as ServerDetector
from .parts.server_context import ServerWatch as ServerWatch
from .scrutinizer import GradientScrutinizer
from .splitguard import SplitGuard

__all__ = ["ConsensusCosine", "GradientScrutinizer", "LeakMeter", "OutlierGradients", "SplitGuard"]
