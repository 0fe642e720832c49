"""Guards, one idea a file: what a client does to its activations before they leave."""

from .adversarial import Adversarial
from .base import Guard as Guard
from .base import NoGuard
from .bf16 import BF16
from .bottleneck import Bottleneck1x1
from .c3 import C3
from .chain import Chain
from .clip import Clip
from .dct import DCT
from .disco import Disco
from .dpsgd import DPSGD
from .entropic import EntropicStudent
from .fedlite import FedLite
from .image_files import HEVC, JPEG
from .kanonymous import KAnonymous
from .lfq import LFQ
from .lightsplit import LightSplit
from .noise import Gaussian, Laplace, Noise
from .nopeek import NoPeek
from .prism import Prism
from .quantize import Quantize
from .rate import RateBottleneck
from .seal import SEAL
from .shredder import Shredder
from .splitfc import SplitFC
from .subset import Subset
from .topk import RandTopK, TopK
from .wcc import WCC

__all__ = [
    "BF16",
    "C3",
    "DCT",
    "DPSGD",
    "HEVC",
    "JPEG",
    "LFQ",
    "SEAL",
    "WCC",
    "Adversarial",
    "Bottleneck1x1",
    "Chain",
    "Clip",
    "Disco",
    "EntropicStudent",
    "FedLite",
    "Gaussian",
    "KAnonymous",
    "Laplace",
    "LightSplit",
    "NoGuard",
    "NoPeek",
    "Noise",
    "Prism",
    "Quantize",
    "RandTopK",
    "RateBottleneck",
    "Shredder",
    "SplitFC",
    "Subset",
    "TopK",
]


def every() -> list[Guard]:
    """Each guard in its usual setting: what `--guard all` audits. (Pictures need a cut at the input.)"""
    return [globals()[name].usual() for name in __all__ if name not in ("Chain", "NoGuard", "JPEG", "HEVC")]
