"""What single protocols do, and how a plan takes them."""

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.data.base import Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit, NoGuard, Prism
from cutlayer.nets.bypass import FillChannels
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.schedule import SplitFed
from cutlayer.training.protocols import Alone, Bypass, Cut, Federated, Protocol, UShaped, Vanilla


@pytest.mark.parametrize(("home", "kept"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.75, 3), (0.99, 3)])
def test_a_bypass_keeps_a_share_of_the_channels_but_never_all_or_none(home, kept):
    assert Bypass(home=home).shared_shape((4, 5, 5), NoGuard()) == (4 - kept, 5, 5)


def test_a_guard_that_holds_back_sees_all_channels_of_a_bypass():
    assert Bypass(home=0.9).shared_shape((4, 5, 5), Prism()) == (4, 5, 5)
    assert Bypass(home=0.9).shared_shape((1, 5, 5), Prism()) == (1, 5, 5), "one channel is enough for it"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bypass(home=1.0), "share of channels that stay"),
        (lambda: Bypass(home=0), "share of channels that stay"),
        (lambda: Bypass(fusion="sum"), "residual, concat"),
        (lambda: Bypass().shared_shape((1, 8, 8), NoGuard()), "has only one"),
    ],
)
def test_a_bypass_that_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_server_fills_in_what_stayed_home_in_a_bypass_alone():
    cut = Cut((4, 5, 5), (3, 5, 5), (3, 5, 5), (7,))
    filled = Bypass().server_parts(cut)
    assert filled.keys() == {"fill"} and isinstance(filled["fill"], FillChannels) and filled["fill"].channels == 4
    assert UShaped().server_parts(cut) == Vanilla().server_parts(cut) == Federated().server_parts(cut) == {}


def test_the_fusion_of_a_bypass_is_its_own():
    """A mix of both has weights that a sum has not."""
    sizes = {}
    for fusion in ("residual", "concat"):
        plan = tiny_plan(protocol=Bypass(fusion=fusion))
        client = build_client(plan, TASK, 0, build_server(plan.public(), TASK).handle)
        sizes[fusion] = sum(p.numel() for p in client.split.rejoin.parameters())
    assert sizes["concat"] > sizes["residual"]


@pytest.mark.parametrize("protocol", [Bypass, UShaped])
def test_a_class_is_refused_with_how_it_is_written_since(protocol):
    name = protocol.__name__
    with pytest.raises(ValueError, match=rf"since version 0\.2, not the class {name}: write protocol={name}\("):
        Plan(protocol=protocol)


def test_both_sides_agree_on_the_protocol_and_its_arguments():
    prints = {tiny_plan(protocol=one).fingerprint() for one in (UShaped(), Bypass(), Bypass(home=0.25), Vanilla())}
    assert len(prints) == 4


def test_one_that_says_nothing_crosses_is_held_to_it_whatever_it_is_called():
    class Kept(Protocol):
        crosses = False

    with pytest.raises(ValueError, match=r"nothing crosses in .*Kept.* that LightSplit"):
        tiny_plan(protocol=Kept(), guard=LightSplit(ratio=4))
    with pytest.raises(ValueError, match="nothing is learnt together"):
        tiny_plan(protocol=Kept(), shared_client_network=False)


# ------------------------------------------------------------------ a client without a server
def by_themselves(**changes):
    return tiny_plan(protocol=Alone(width=4), shared_client_network=False, epochs=1, batch_size=8, **changes)


def weights(run, client):
    return {name: t.clone() for name, t in run.networks[client].split.state_dict().items()}


def test_a_client_alone_learns_from_its_own_samples_and_from_nobody_else():
    """What the second client holds changes nothing for the first, though they train side by side."""
    data = tiny_parts()
    plan = by_themselves(clients=2)
    first = LocalRun(plan, data, classes=TASK.classes)
    theirs = first.clients[1].samples.x
    is_theirs = (data.private.x[:, None] == theirs[None]).flatten(2).all(2).any(1)
    x = torch.where(is_theirs[:, None, None, None], 1 - data.private.x, data.private.x)
    other = LocalRun(plan, Parts(type(data.private)(x, data.private.y), data.aux, data.val, data.test), classes=3)
    start = weights(first, 0)
    for run in (first, other):
        run.train()
    one, same = weights(first, 0), weights(other, 0)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], start[name]) for name in one), "it learns"
    assert any(not torch.equal(t, weights(other, 1)[name]) for name, t in weights(first, 1).items())
    assert first.ledger.bytes.total() == 0 and first.network() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 2, "shared_client_network": True}, "nothing is merged or handed on"),
        ({"clients": 2, "rounds": SplitFed()}, "nothing is merged or handed on"),
        ({"guard": LightSplit(ratio=4)}, "nothing crosses"),
    ],
)
def test_what_a_client_alone_has_no_use_for_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny_plan(**{"protocol": Alone(), "shared_client_network": False, **changes})


@pytest.mark.parametrize("width", [0, 2.5, 10**6])
def test_a_width_that_cannot_be(width):
    with pytest.raises(ValueError, match="width is a whole number"):
        Alone(width=width)
