"""Every guard at every kind of cut, a vector, a series, a sequence of tokens or a map: it works, or says why not."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest
import torch
from test_split_equals_whole import learn_whole
from torch import nn
from toys import ALL_GUARDS, split_and_whole, states, tiny_plan

from cutlayer.guards import (
    HEVC,
    JPEG,
    LFQ,
    Bottleneck1x1,
    Disco,
    EntropicStudent,
    NoGuard,
    Prism,
    RateBottleneck,
)
from cutlayer.nets.base import Net
from cutlayer.training.laws import CHEAP_GUARD, TASK, toy_batch
from cutlayer.training.plan.plan import Task
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.step import learn

# Guards that read maps alone. All others read any shape: what is in no list here has to.
MAPS_ONLY = (Bottleneck1x1, Disco, EntropicStudent, Prism, RateBottleneck)
NO_VECTORS = (LFQ,)
PICTURES_ONLY = (HEVC, JPEG)


@dataclass(frozen=True, repr=False)
class RowNet(Net):
    """linear on the last dimension, or a convolution along it | linear | linear"""

    along: bool = False

    def check(self, shape):
        pass

    def head(self, shape):
        layer = nn.Conv1d(shape[0], 4, 3, padding=1) if self.along else nn.Linear(shape[-1], 48)
        return nn.Sequential(layer, nn.ReLU())

    def body(self, shape):
        numbers = 4 * shape[1] if self.along else 48 * prod(shape[:-1])
        return nn.Sequential(nn.Flatten(), nn.Linear(numbers, 7), nn.ReLU())

    def tail(self, shape, classes):
        return nn.Linear(7, classes)


@dataclass(frozen=True)
class Cut:
    """A kind of cut: a network that has one, what it reads, and the shape."""

    name: str
    net: Net
    task: Task
    shape: tuple[int, ...]


CUTS = [
    Cut("vector", RowNet(), Task((9,), 3, {"odd": 2}), (48,)),
    Cut("series", RowNet(along=True), Task((2, 20), 3, {"odd": 2}), (4, 20)),
    Cut("sequence", RowNet(), Task((3, 10), 3, {"odd": 2}), (3, 48)),
    Cut("map", tiny_plan().net, TASK, (4, 5, 5)),
]
everywhere = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
all_guards = pytest.mark.parametrize("guard", ALL_GUARDS, ids=repr)


def unreadable(guard, cut):
    """What the table above says."""
    stages = guard.stages()
    unread = (
        *PICTURES_ONLY,
        *(MAPS_ONLY if cut.name != "map" else ()),
        *(NO_VECTORS if cut.name == "vector" else ()),
    )
    return any(isinstance(one, unread) for one in stages)


READABLE = [(guard, cut) for guard in ALL_GUARDS for cut in CUTS if not unreadable(guard, cut)]
ROWS = [(guard, cut) for guard, cut in READABLE if cut.name != "map"]  # maps are in test_split_equals_whole


def named(pairs):
    ids = [f"{guard!r}-{cut.name}" for guard, cut in pairs]
    return pytest.mark.parametrize(("guard", "cut"), pairs, ids=ids)


def fed(guard, cut, count=3):
    size = max(8, 2 * guard.least_batch)
    return [toy_batch(cut.task, size, seed) for seed in range(count)]


@everywhere
def test_the_toys_have_the_cuts_they_say(cut):
    assert cut_shapes(tiny_plan(net=cut.net), cut.task).z == cut.shape


@everywhere
@all_guards
def test_it_works_there_or_refuses_in_one_sentence(guard, cut):
    if not unreadable(guard, cut):
        for law in CHEAP_GUARD:
            law(guard, cut.shape, cut.task)
        return
    with pytest.raises(ValueError, match=re.escape(str(cut.shape))) as refused:
        guard.out_shape(cut.shape)
    assert "\n" not in str(refused.value)


@named(READABLE)
def test_it_acts_in_service_on_every_shape(guard, cut):
    module = guard.build(cut.shape, public=1, private=2, task=cut.task).eval()
    batch = fed(guard, cut, 1)[0]
    z = torch.rand(len(batch), *cut.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        one, other = (module(z, batch) for _ in range(2))
    assert torch.equal(one.seen, other.seen)
    untouched = one.seen.shape == z.shape and torch.equal(one.seen, z)
    assert untouched == (guard == NoGuard() or guard.client_only)


@pytest.mark.one_in(3)
@named(ROWS)
def test_split_training_is_training_on_every_shape(guard, cut):
    client, server, twin, twin_server = split_and_whole(tiny_plan(net=cut.net, guard=guard), cut.task)
    start = {name: t.clone() for name, t in states(client, server).items()}
    for batch in fed(guard, cut):
        learn(client, batch)
        learn_whole(twin, twin_server, batch)
    ours, theirs = states(client, server), states(twin, twin_server)
    # To rounding: products of narrow matrices may be summed in another order once a gradient has crossed.
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(ours[name], start[name]) for name in ours), "nothing was learnt"


def test_the_guide_names_the_guards_that_read_maps_alone():
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("Maps alone are read by"))
    maps, pictures = line.split("pictures at the input", 1)
    assert re.findall(r"`(\w+)`", maps) == [one.__name__ for one in MAPS_ONLY]
    assert re.findall(r"`(\w+)`", pictures) == [one.__name__ for one in PICTURES_ONLY]
