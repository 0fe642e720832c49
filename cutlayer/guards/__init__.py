"""Guards, one idea a file: what a client does to its activations before they leave.

An import line here is all that registers one: `__all__`, and with it every name a person may type, follows.
"""

from ..core.guard import Guarded as Guarded
from ..core.guard import GuardModule as GuardModule
from ..core.guard import Shape as Shape
from ..core.search import Between as Between
from ..core.search import Fixed as Fixed
from ..core.search import OneOf as OneOf
from ..core.search import Search as Search
from ..core.seeds import derive as derive
from ..core.seeds import generator as generator
from ..core.spec import plug_ins
from ..core.split import each as each
from .adversarial import Adversarial as Adversarial
from .base import Bound as Bound
from .base import Guard as Guard
from .base import NoGuard as NoGuard
from .bf16 import BF16 as BF16
from .bottleneck import Bottleneck1x1 as Bottleneck1x1
from .c3 import C3 as C3
from .chain import Chain as Chain
from .clip import Clip as Clip
from .disco import Disco as Disco
from .dpsgd import DPSGD as DPSGD
from .entropic import EntropicStudent as EntropicStudent
from .fedlite import FedLite as FedLite
from .gate import Gate as Gate
from .jpeg_hevc import HEVC as HEVC
from .jpeg_hevc import JPEG as JPEG
from .kanonymous import KAnonymous as KAnonymous
from .lfq import LFQ as LFQ
from .lightsplit import LightSplit as LightSplit
from .noise import Gaussian as Gaussian
from .noise import Laplace as Laplace
from .noise import Noise as Noise
from .nopeek import NoPeek as NoPeek
from .parts.claims import Claim as Claim
from .parts.claims import Sent as Sent
from .parts.distance_correlation import distance_correlation as distance_correlation
from .parts.projection import Dense as Dense
from .prism import Prism as Prism
from .public_transforms import DCT as DCT
from .public_transforms import DST as DST
from .public_transforms import PCA as PCA
from .public_transforms import Haar as Haar
from .quantize import Quantize as Quantize
from .rate import RateBottleneck as RateBottleneck
from .seal import SEAL as SEAL
from .shredder import Shredder as Shredder
from .splitfc import SplitFC as SplitFC
from .subset import Subset as Subset
from .topk import RandTopK as RandTopK
from .topk import TopK as TopK
from .wcc import WCC as WCC
from .wcc import within_class_scatter as within_class_scatter

__all__ = plug_ins(globals(), Guard)


def every() -> list[Guard]:
    """Each guard in its usual setting: what `--guard all` audits."""
    return [guard.usual() for guard in (globals()[name] for name in __all__) if guard.in_suite]
