"""The plan of the examples in this folder. Every party has a copy of its own; guards of a client alone may differ."""

from cutlayer import Plan
from cutlayer.guards import WCC, Chain, LightSplit
from cutlayer.nets import SimpleCNN


def plan():
    return Plan(net=SimpleCNN(), clients=2, guard=Chain(LightSplit(ratio=8), WCC(weight=0.1)), epochs=5)
