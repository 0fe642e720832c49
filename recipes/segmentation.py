"""Split learning with a class for every pixel: a small DeepLab on scenes of digits that need no file.

The cut is 32x32x32, sixteen times the size of a label map of bytes: without a guard a sample costs 131 kB each way.
Figures of a run of `scenes` and of `scenes_lightsplit` are in docs/inference.md; the other two have none yet.
"""

from dataclasses import replace

from cutlayer import Plan
from cutlayer.data import Scenes
from cutlayer.guards import LFQ, Chain, LightSplit, Quantize
from cutlayer.nets import Segmenter
from cutlayer.training import Compression, Cosine

EIGHT_BITS = Compression(answers=Quantize(bits=8), gradients=Quantize(bits=8, rounding="stochastic"))


def scenes() -> Plan:
    """No guard."""
    return Plan(net=Segmenter(), data=Scenes(), epochs=12, batch_size=32, schedule=Cosine())


def scenes_quantize() -> Plan:
    """Eight bits a number in all four messages."""
    return replace(scenes(), guard=Quantize(bits=8), compression=EIGHT_BITS)


def scenes_lightsplit() -> Plan:
    """An eighth of the width, four bits a number; eight in the other messages."""
    guard = Chain(LightSplit(ratio=8), Quantize(bits=4))
    return replace(scenes(), guard=guard, compression=EIGHT_BITS)


def scenes_lfq() -> Plan:
    """A learned code of nine bits a position; gradients and answers as they are."""
    return replace(scenes(), guard=LFQ(bits=9))
