"""A recipe that is made of the files beside it."""

from half_way import HalfWay
from in_order import InOrder
from large_gradients import LargeGradients
from sign_bit import SignBit
from smoothed_labels import Smoothed
from two_layers import TwoLayers

from cutlayer import Plan
from cutlayer.data import Digits
from cutlayer.training import SplitFed


def everything() -> Plan:
    return Plan(
        net=TwoLayers(width=12), guard=SignBit(), rule=HalfWay(), rounds=SplitFed(), partition=InOrder(), clients=2,
        protocol=Smoothed(), client_detectors=(LargeGradients(),), data=Digits(limit=200), epochs=2, aux_samples=60,
    )  # fmt: skip
