"""The plans of fashion.py on digits, on which much of the evidence was measured (extra `digits`)."""

from dataclasses import replace

from cutlayer import Plan
from cutlayer.data import Digits, Dirichlet
from cutlayer.guards import WCC, Chain, LightSplit
from cutlayer.nets import SimpleCNN


def demo() -> Plan:
    """A small network, unguarded; 2,000 digits are set aside for the attacker."""
    return Plan(net=SimpleCNN(), data=Digits(), epochs=10, aux_samples=2000)


def quick() -> Plan:
    """Seconds, not accuracy: to see that everything runs."""
    return replace(demo(), data=Digits(limit=600), epochs=1, aux_samples=0)


def guarded() -> Plan:
    """The same behind a projection, with classes drawn together. The weight of WCC stays with the client."""
    return replace(demo(), guard=Chain(LightSplit(ratio=8), WCC(weight=0.01)))


def relay() -> Plan:
    """Five clients with skewed labels hand one head on, a batch each."""
    return replace(demo(), clients=5, partition=Dirichlet(alpha=0.5))


def own_heads() -> Plan:
    """The same five clients, each with a head and a tail of its own: no weights travel."""
    return replace(relay(), shared_client_network=False)
