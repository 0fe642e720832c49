"""What `cutlayer demo` shows: one small model, unguarded and guarded, on images that come with this package."""

from ..attacks import Attack, Decoder
from ..data.fashion import Fashion
from ..guards import WCC, Chain, Gate, Guard, LightSplit
from ..nets.simple_cnn import SimpleCNN
from ..training.plan.plan import Plan


def demo_plan() -> Plan:
    return Plan(net=SimpleCNN(), data=Fashion(), epochs=10, aux_samples=2000)


def demo_guards() -> list[Guard]:
    return [
        LightSplit(ratio=8),
        Chain(LightSplit(ratio=8), WCC(weight=0.01)),
        Gate(numbers=16, bits=1, budget=200_000, home=1.0),  # a head as small as this one is worth no larger encoder
    ]


def demo_attacks() -> list[Attack]:
    # The best reader goes on for as many steps again, on moved images: fewer than usual keep the demo to two minutes.
    return [Decoder(steps=160)]
