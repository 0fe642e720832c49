"""A plan asks each of its parts whether it can stand in it: plug-ins of one's own refuse like the package's."""

from dataclasses import dataclass

import pytest

from cutlayer.data.poisons import LabelFlip
from cutlayer.detectors import ConsensusCosine, GradientScrutinizer
from cutlayer.guards import LFQ, NoGuard
from cutlayer.rules import FedAvg, Latest, Scaffold
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import AllActive, Frozen, Role, Roles
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import UShaped

PARTS = {
    "guard": NoGuard, "rounds": Relay, "rule": Latest, "roles": AllActive, "protocol": UShaped, "poison": LabelFlip,
    "client_detectors": GradientScrutinizer, "server_detectors": ConsensusCosine,
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_asked(name):
    asked = []

    class Fussy(PARTS[name]):
        def refuse_unfit_plan(self, plan):
            super().refuse_unfit_plan(plan)
            asked.append(plan.epochs)
            raise ValueError("not with me")

    part = Fussy()
    with pytest.raises(ValueError, match="not with me"):
        Plan(epochs=7, clients=10, **{name: (part,) if name.endswith("detectors") else part})
    assert asked == [7]


def test_how_many_learn_follows_from_the_roles_themselves():
    @dataclass(frozen=True, repr=False)
    class FirstRests(Roles):
        def at(self, number, clients, seed):
            return [Role.OUT] + [Role.ACTIVE] * (clients - 1)

    assert [one.learning(4) for one in (AllActive(), Frozen(share=0.25), FirstRests())] == [4, 3, 3]
    with pytest.raises(ValueError, match="fused=False"):
        Plan(clients=4, rounds=Wave(fused=True), roles=FirstRests())


@pytest.mark.parametrize(
    ("optimizer", "plain"), [(SGD(momentum=0.0), True), (SGD(), False), (Adam(), False)], ids=repr
)
def test_scaffold_asks_the_optimizer_whether_it_is_plain_descent(optimizer, plain):
    fields = {"clients": 2, "rounds": SplitFed(version=2), "rule": Scaffold(), "client_optimizer": optimizer}
    assert optimizer.plain == plain
    if plain:
        assert Plan(**fields).rule == Scaffold()
    else:
        with pytest.raises(ValueError, match=r"take client_optimizer=SGD\(momentum=0\.0\), not"):
            Plan(**fields)


def test_heads_of_their_own_would_replace_each_others_decoder():
    replacing, fields = LFQ(decoder="client"), {"rounds": SplitFed(version=2), "clients": 2}
    with pytest.raises(ValueError, match=r"share the heads, or take LFQ\(decoder='server'\)"):
        Plan(guard=replacing, shared_client_network=False, **fields)
    assert Plan(guard=replacing, **fields) and Plan(guard=LFQ(), shared_client_network=False, **fields)


def test_a_mean_that_nobody_asked_for_may_have_nothing_to_do():
    plan = Plan(clients=2, rounds=SplitFed(version=2), shared_client_network=False)
    assert plan.rule == FedAvg()
    with pytest.raises(ValueError, match="nothing to merge"):
        Plan(clients=2, rounds=SplitFed(version=2), shared_client_network=False, rule=FedAvg(lr=0.5))
