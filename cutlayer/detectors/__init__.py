"""Detectors, one idea a file: what a client can notice of a server, or a server of its clients.

An import line here is all that registers one: `__all__`, and with it every name a person may type, follows.
"""

from ..core.spec import plug_ins
from .base import ClientAssets as ClientAssets
from .base import ClientContext as ClientContext
from .base import Detector as Detector
from .base import SentBatch as SentBatch
from .base import StepView as StepView
from .base import Watch as Watch
from .consensus import ConsensusCosine as ConsensusCosine
from .leak_meter import LeakMeter as LeakMeter
from .leak_meter import why_not_kept as why_not_kept
from .outliers import OutlierGradients as OutlierGradients
from .parts.guard_swap import swap_guard as swap_guard
from .parts.server_context import ServerContext as ServerContext
from .parts.server_context import ServerDetector as ServerDetector
from .parts.server_context import ServerWatch as ServerWatch
from .scrutinizer import GradientScrutinizer as GradientScrutinizer
from .splitguard import SplitGuard as SplitGuard

__all__ = plug_ins(globals(), Detector, ServerDetector)
