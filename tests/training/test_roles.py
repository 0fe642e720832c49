"""Roles: who only feeds the server forward, what it does not do for it, and what the others learn from it."""

import pytest
import torch
from fleet import PLAIN, body_of, plan, same, start, trained
from toys import GUARDS

from cutlayer.core.message import Kind
from cutlayer.core.state import named
from cutlayer.training.client import Client
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.roles import Frozen, Role
from cutlayer.training.protocols import Bypass, UShaped, Vanilla


def test_roles_stay_or_change():
    roles = Frozen(share=0.4)
    assert roles.at(0, 5, 0) == roles.at(9, 5, 0) == [Role.ACTIVE] * 3 + [Role.FROZEN] * 2
    assert Frozen(share=0.4, discard=True).at(0, 5, 0) == [Role.ACTIVE] * 3 + [Role.OUT] * 2
    changing = [tuple(Frozen(share=0.4, rotate=2).at(number, 5, 7)) for number in range(12)]
    assert changing[0] == changing[1] and len(set(changing)) > 2
    assert all(one.count(Role.FROZEN) == 2 for one in changing)
    assert [Frozen(inherit=3).inherits(number) for number in range(4)] == [True, False, False, True]
    assert not Frozen(inherit=0).inherits(0)


@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
def test_a_frozen_client_never_runs_backward_and_changes_nothing(protocol):
    """No gradient reaches its head, nothing of it changes, no optimizer state appears, and message 4 is not sent."""
    answers = []
    run = start(
        plan(roles=Frozen(share=0.4, inherit=0), protocol=protocol, client_optimizer=Adam(), epochs=1),
        at_server=[lambda message, handle: answers.append((message, handle(message))) or answers[-1][1]],
    )
    frozen = run.clients[2].network
    before, calls = named(frozen.split), []
    frozen.split.head.register_full_backward_hook(lambda *_: calls.append(1))
    for parameter in frozen.split.parameters():
        parameter.register_hook(lambda _: calls.append(2))
    body = body_of(run)
    run.take([turn for one in run.timetable.rounds(0) for turn in one if turn.client == 2][:1])
    assert calls == [] and not frozen.optimizer.state
    same(named(frozen.split), before)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in frozen.split.parameters())
    assert any(not torch.equal(body[name], tensor) for name, tensor in body_of(run).items()), "the server learns"
    kinds = [message.kind for message, _ in answers]
    assert kinds == ([Kind.LOSS] if protocol == Vanilla() else [Kind.FORWARD, Kind.BACKWARD])
    assert not any("dz" in reply.tensors for _, reply in answers)
    # An active client's turn does all of that, so the checks above can fail.
    active = run.clients[0].network
    active.split.head.register_full_backward_hook(lambda *_: calls.append(1))
    before = named(active.split)
    run.take([turn for one in run.timetable.rounds(0) for turn in one if turn.client == 0][:1])
    assert (
        calls
        and active.optimizer.state
        and any(not torch.equal(before[n], t) for n, t in named(active.split).items())
    )
    assert any("dz" in reply.tensors for _, reply in answers)


def test_the_server_learns_from_a_frozen_client_what_it_would_from_one_with_a_frozen_head():
    """The body's step is the chain rule's: as if the client had answered message 4 with nothing."""
    fields = {"protocol": Vanilla(), "epochs": 1, "client_optimizer": PLAIN}
    frozen = start(plan(roles=Frozen(share=0.4, inherit=0), **fields))
    plain = start(plan(frozen_parts=("head",), **fields))
    plain.start_from(frozen)  # a frozen head that is shared starts from the public seed
    turn = next(turn for one in frozen.timetable.rounds(0) for turn in one if turn.client == 2)
    frozen.take([turn])
    plain.take([turn._replace(frozen=False)])
    same(body_of(frozen), body_of(plain))


def test_frozen_clients_take_over_the_head_of_the_last_active_one():
    run = start(plan(roles=Frozen(share=0.4), epochs=1))
    for one in run.timetable.rounds(0):
        run.take(one)
        if one[0].frozen:
            same(
                named(run.clients[one[0].client].network.split),
                {n: t for n, t in run.coordinator.shared.items() if "optim" not in n},
            )
    own = start(plan(roles=Frozen(share=0.4, inherit=0), epochs=1))
    first = named(own.clients[2].network.split)
    assert own.train()
    same(named(own.clients[2].network.split), first)


def test_discarded_clients_do_nothing():
    run = trained(plan(roles=Frozen(share=0.4, discard=True)))
    assert (
        run.progress.taken[2] == 0
        and min(run.progress.taken[:2]) > 0
        and run.progress.step == sum(run.progress.taken) == run.timetable.steps
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guard", GUARDS, ids=repr)
@pytest.mark.parametrize("protocol", [Vanilla(), UShaped()], ids=repr)
def test_every_guard_lets_a_client_be_frozen(guard, protocol):
    run = start(plan(guard=guard, protocol=protocol, roles=Frozen(share=0.4), epochs=1))
    client = run.clients[2].network
    same_before = named(client.split)
    turn = next(turn for one in run.timetable.rounds(0) for turn in one if turn.client == 2)
    run.take([turn])
    same(named(client.split), same_before)


def test_frozen_clients_with_heads_of_their_own_are_measured_with_them(monkeypatch):
    run, given = trained(plan(roles=Frozen(share=0.4, inherit=0))), {}
    as_it_is = Client.evaluate_with

    def listen(client, weights, *rest):
        given[client.number] = dict(weights)
        return as_it_is(client, weights, *rest)

    monkeypatch.setattr(Client, "evaluate_with", listen)
    assert len(run.evaluate(run.parts.test)) == 3
    same(given[0], run.coordinator.shared)
    assert given[2] == {}  # it keeps its own


def test_a_frozen_step_is_about_its_whole_batch():
    heard = {}
    one = plan(roles=Frozen(share=0.4), micro_batches=2, epochs=1)

    def listen(message, handle):
        if message.kind is Kind.FORWARD:
            heard[message.client, message.step] = len(message["z"])
        return handle(message)

    run = trained(one, at_server=[listen])
    for (client, step), rows in heard.items():
        assert len(run.batch_of(client, step)) == rows
