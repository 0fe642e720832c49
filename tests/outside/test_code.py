"""A plan's fingerprint names code: other sources and other parameters are other plans."""

from functools import partial
from pathlib import Path

import pytest
from torch import nn

from cutlayer.core.outside.source import source_of
from cutlayer.core.spec import spec
from cutlayer.nets.own import Own
from cutlayer.training.plan.plan import Plan


class Model(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def make():
    return Model()


def make_too():
    return Model()


def closed_over(width):
    def made():
        return Model(width)

    return made


def own(function):
    return Plan(net=Own(function, "0"))


def test_own_networks_have_fingerprints_of_their_own():
    several = [
        partial(Model, width=8), partial(Model, width=32), make, make_too, Model, lambda: Model(8), lambda: Model(9),
        closed_over(8), closed_over(9),
    ]  # fmt: skip
    assert len({own(one).fingerprint() for one in several}) == len(several)
    assert len({own(one).fingerprint() for one in (partial(Model, width=8), partial(Model, width=8))}) == 1
    told = own(partial(Model, width=8)).agreed()
    assert told["net"] == "Own(make=partial(Model, w=8), at='0', back=None)".replace("w=", "width=")
    assert told["parameters of the head"].startswith("2 tensors") and "code" in told
    assert told["parameters of the head"] != own(partial(Model, width=9)).agreed()["parameters of the head"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: Model(), "a lambda has no name"),
        (closed_over(3), "keeps values of the function it was made in"),
        (partial(Model, width=nn.Linear(1, 1)), "an object of the class Linear"),
        (Model().forward, "is a method of an object"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(function, why):
    assert why in source_of(function).why_not
    plan = Plan(net=Own(function, "0"))
    with pytest.raises(ValueError, match=f"cannot be compared between machines: .*{why}"):
        plan.refuse_nameless()


def test_what_has_a_source_is_not_refused():
    for one in (make, Model, partial(Model, width=3)):
        own(one).refuse_nameless()
    Plan().refuse_nameless()
    assert "code" not in Plan().agreed() and Plan().code() == {}


def digest_of_two_layers():
    return source_of(type(spec("two_layers.py:TwoLayers()"))).digest


def test_what_a_class_uses_from_beside_itself_counts(plugins):
    before, net = digest_of_two_layers(), Path("two_layers.py")
    net.write_text(net.read_text() + "\n\nUNUSED = 3\n")
    assert digest_of_two_layers() == before, "what it does not use does not count"
    net.write_text(net.read_text().replace("from widths import MIDDLE", "MIDDLE = 7"))
    assert digest_of_two_layers() != before, "a number it uses does"


def test_what_stands_above_a_class_counts(plugins):
    before, net = digest_of_two_layers(), Path("two_layers.py")
    net.write_text(net.read_text().replace("@dataclass(frozen=True, ", "@dataclass(frozen=True, order=True, "))
    assert digest_of_two_layers() != before


def test_a_network_from_outside_names_its_parameters(plugins):
    told = [Plan(net=spec(f"two_layers.py:TwoLayers(width={width})")).agreed() for width in (8, 9)]
    assert told[0]["net"] == "TwoLayers()" and "two_layers" not in repr(told)
    assert told[0]["code"] == told[1]["code"]
    assert told[0]["parameters of the body"] != told[1]["parameters of the body"]
    assert told[0]["parameters of the tail"] == told[1]["parameters of the tail"]
