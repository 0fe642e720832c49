"""A run whose messages all go through frames is the run, bit for bit: what a socket would change, without one."""

from dataclasses import dataclass, replace

import pytest
import torch
from rotation import and_the_rest, rotation
from test_protocols import CROSSING
from test_split_equals_whole import CANNOT
from test_split_equals_whole import check as same_as_whole
from torch import nn
from toys import ALL_GUARDS, TASK, LinearNet, TinyNet, tiny_parts, tiny_plan

from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import C3
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.wire import frames
from cutlayer.wire.ledger import DOWN, UP

KINDS = ("FORWARD", "LOSS", "BACKWARD", "PREDICT", "LIFT")
SCHEDULES = [{}, {"rounds": SplitFed(version=2)}, {"rounds": Wave()}]


def trained(plan, handed):
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes, wrap=handed)
    assert run.train()
    return run


def check(plan):
    """The same weights, and as many bytes in the ledger as in the frames."""
    sent = {UP: 0, DOWN: 0}

    def over(message, way):
        frame = frames.encode(message)
        sent[way] += len(frame)
        return replace(message, tensors=frames.decode(frame).tensors)

    def framed(handler):
        return lambda message: over(handler(over(message, UP)), DOWN)

    here, there = trained(plan, lambda handler: handler), trained(plan, framed)
    ours, theirs = here.tensors(), there.tensors()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    counted = {way: sum(there.ledger.bytes[kind, way] for kind in KINDS) for way in (UP, DOWN)}
    assert counted == sent and sent[UP] > 0


def tiny(**changes):
    return tiny_plan(**{"clients": 2, "epochs": 1, "batch_size": 8, "val_share": 0.2, **changes})


@dataclass(frozen=True, repr=False)
class NormedNet(LinearNet):
    """LinearNet with a normalisation behind the body: its sums hang on how du lies."""

    def body(self, shape):
        return nn.Sequential(super().body(shape), nn.BatchNorm1d(self.width))


SLICE = rotation(ALL_GUARDS, CROSSING, SCHEDULES)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("guard", "protocol", "schedule"), and_the_rest(SLICE, ALL_GUARDS, CROSSING, SCHEDULES), ids=repr
)
def test_every_guard_learns_the_same_through_frames(guard, protocol, schedule):
    if (type(guard), protocol) in CANNOT or (guard.exchange and schedule.get("rounds") == Wave()):
        return
    check(tiny(guard=guard, protocol=protocol, **schedule))


@pytest.mark.parametrize("net", [TinyNet(), LinearNet(), NormedNet()], ids=repr)
@pytest.mark.parametrize(
    "protocol", [Vanilla(), UShaped(), Bypass(home=0.25, fusion="concat"), Bypass(fusion="hybrid")], ids=repr
)
def test_what_crosses_lies_in_memory_as_a_frame_brings_it(net, protocol):
    """A slice of a longer row has other strides than what arrives, and is summed in another order."""
    check(tiny(net=net, protocol=protocol, batch_size=6))
    same_as_whole(tiny(net=net, protocol=protocol), steps=4)


@pytest.mark.parametrize("net", [LinearNet(width=1), LinearNet(width=2), TinyNet()], ids=repr)
def test_a_cut_of_a_single_number_crosses(net):
    check(tiny(net=net, guard=C3(ratio=2), batch_size=2))
