"""What never changes does not travel: hand-ons, merges and snapshots hold what trains, and runs stay the same."""

import pytest
import torch
from fleet import PLAIN, refuse_other_end, same
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.core.state import changing, fixed_names
from cutlayer.engines.local import pool
from cutlayer.engines.local.run import LocalRun
from cutlayer.rules import FedMuon, Scaffold
from cutlayer.training.build import build_client
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Federated, Vanilla
from cutlayer.training.step import load


def plan(**changes):
    return tiny_plan(**{"clients": 3, "batch_size": 6, "epochs": 2, "frozen_parts": ("head", "body"), **changes})


def run_of(one, **changes):
    return LocalRun(one, tiny_parts(24), classes=TASK.classes, **changes)


def trained(split):
    return {name: p for name, p in split.named_parameters() if p.requires_grad}


SCHEDULES = {
    "relay": {},
    "SplitFed": {"rounds": SplitFed(), "local_steps": 2, "epochs": 3},
    "FedMuon": {"rounds": SplitFed(version=2), "rule": FedMuon()},
    "control variates": {"rounds": SplitFed(version=2), "rule": Scaffold(), "client_optimizer": PLAIN},
    "a wave": {"rounds": Wave()},
    "frozen clients": {"roles": Frozen(share=0.4)},
    "federated": {"protocol": Federated(), "rounds": SplitFed()},
    "nothing of the client's, and frozen ones": {
        "protocol": Vanilla(),
        "frozen_parts": ("head",),
        "rounds": SplitFed(),
        "roles": Frozen(share=0.4),
    },
    "nothing of the client's": {"protocol": Vanilla(), "frozen_parts": ("head",), "rounds": SplitFed()},
}
each_schedule = pytest.mark.parametrize("changes", SCHEDULES.values(), ids=SCHEDULES)


@each_schedule
def test_only_what_trains_is_handed_on_and_a_resumed_run_is_the_same(changes):
    one, heard = plan(**changes), []
    run = run_of(one)
    note = run.ledger.note
    run.ledger.note = lambda message, *given: (heard.append(message), note(message, *given))[1]
    kept = refuse_other_end(run, lambda: run_of(one))
    learnt = trained(run.networks[0].split)
    handed = [message for message in heard if message.kind is Kind.WEIGHTS]
    assert handed
    for message in handed:
        names = {name.removeprefix("net.") for name in message.tensors if name.startswith("net.")}
        assert names in ({*learnt}, set()), "the first order of a relay has nothing to hand on"
        assert not any(name.startswith("stat.") and "head" in name for name in message.tensors)
    fixed = fixed_names(run.server.body)
    assert not [name for name in kept if name.startswith("server/net.") and name[11:] in fixed]
    assert ("body.0.weight" in fixed) == ("body" in one.frozen_parts and one.protocol.crosses)


def test_bytes_a_hand_on_are_the_bytes_of_what_trains():
    """The frame's own few bytes apart, and SGD's momentum, which a relay hands on with the weights."""
    found = {}
    for parts in ((), ("head",), ("head", "tail")):
        run = run_of(plan(frozen_parts=parts, client_optimizer=PLAIN))
        run.train()
        rows = run.ledger.messages["WEIGHTS", "up"]
        learnt = sum(4 * p.numel() for p in trained(run.networks[0].split).values())
        stats = sum(t.numel() * t.element_size() for n, t in changing(run.networks[0].split).items() if n not in
                    dict(run.networks[0].split.named_parameters()))  # fmt: skip
        found[parts] = run.ledger.bytes["WEIGHTS", "up"] / rows - learnt - stats
        assert learnt or "tail" in parts
    assert all(0 < rest < 900 for rest in found.values()), found
    assert found[("head", "tail")] < 100, "nothing trains, and nothing but the count of samples leaves"


def test_a_frozen_head_that_is_shared_is_the_same_wherever_it_is_built():
    """Every deployed client has a private seed of its own, and nobody hands a frozen head on."""
    for shared in (True, False):
        one, other = (
            build_client(plan(private_seed=secret, shared_client_network=shared), TASK, 1, lambda message: message)
            for secret in (1, 2)
        )
        heads = [client.split.head.state_dict() for client in (one, other)]
        assert all(torch.equal(t, heads[1][name]) for name, t in heads[0].items() if t.numel() > 20) == shared
        assert not torch.equal(one.split.tail.weight, other.split.tail.weight), "what trains stays private"


def test_clients_that_slept_have_their_own_frozen_heads_again(monkeypatch):
    one = plan(shared_client_network=False, net=TinyNet(norm="group"))
    awake = run_of(one)
    awake.train()
    monkeypatch.setattr(pool, "AWAKE", 1)
    slept = run_of(one)
    slept.train()
    for mine, theirs in zip(awake.networks, slept.networks, strict=True):
        same(mine.split.state_dict(), theirs.split.state_dict())


def test_copies_of_a_frozen_body_share_its_memory():
    run = run_of(plan(rounds=SplitFed()))
    copied = run.server.bodies.of(1)
    base, lift = run.server.body.body, run.server.body
    assert copied is not lift
    for mine, theirs in zip(base.state_dict().values(), copied.body.state_dict().values(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr()


def test_a_guard_is_fitted_to_frozen_networks_that_are_not_those_they_were_built_with(monkeypatch):
    finished = run_of(plan(frozen_parts=(), clients=2))
    finished.train()
    monkeypatch.setattr(pool, "AWAKE", 1)
    fitted = run_of(plan(frozen_parts=("head", "body", "tail"), clients=2))
    fitted.start_from(finished)
    fitted.train()
    theirs = finished.coordinator.shared
    for network in fitted.networks:
        load(network, fitted.coordinator.shared)
        weights = network.split.state_dict()
        assert all(torch.equal(weights[n[4:]], t) for n, t in theirs.items() if n.startswith("net."))
