"""What `cutlayer demo` shows: one small model, unguarded and guarded, on digits that come with a package."""

from ..attacks import Attack, Decoder
from ..data.digits import Digits
from ..guards import WCC, Chain, Guard, LightSplit, Subset
from ..nets.simple_cnn import SimpleCNN
from ..training.plan.plan import Plan


def demo_plan() -> Plan:
    return Plan(net=SimpleCNN(), data=Digits(), epochs=10, aux_samples=2000)


def demo_guards() -> list[Guard]:
    return [
        Subset(ratio=8),
        LightSplit(ratio=8),
        Chain(LightSplit(ratio=8), WCC(weight=0.01)),
    ]


def demo_attacks() -> list[Attack]:
    # The best reader goes on for as many steps again, on moved images: half of the usual ones keep it to two minutes.
    return [Decoder(steps=200)]
