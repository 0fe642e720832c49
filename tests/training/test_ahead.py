"""Batches that are begun before the step before them is over: a loop of late gradients, bit for bit."""

import copy
import threading
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import cross_entropy
from toys import GUARDS, TASK, TinyNet, batches, tiny_parts, tiny_plan

from cutlayer.core.errors import NonFinite
from cutlayer.core.message import Kind
from cutlayer.core.seeds import seeded
from cutlayer.core.spec import spec
from cutlayer.core.state import drop_gradients
from cutlayer.detectors import GradientScrutinizer
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, LFQ, Chain, LightSplit, Noise
from cutlayer.training.ahead import InStretches, kept_as_they_are, learn_ahead
from cutlayer.training.build import build_client, build_server
from cutlayer.training.micro_batches import at_once
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.roles import Frozen, SendOnce
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla

AHEAD = Relay(ahead=1)
PROTOCOLS = [UShaped(), Vanilla(), Bypass()]


def plan(**changes):
    return tiny_plan(**{"rounds": AHEAD, "local_steps": 0, "batch_size": 6, "epochs": 2, "val_share": 0.0, **changes})


def start(one):
    return LocalRun(one, tiny_parts(), classes=TASK.classes)


def trained(one):
    run = start(one)
    assert run.train()
    return run


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


# ------------------------------------------------------------------------------------- laws
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05), Adam(lr=0.01)], ids=repr)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_a_run_is_a_plain_loop_in_which_the_head_learns_one_step_late(protocol, optimizer):
    one = plan(protocol=protocol, client_optimizer=optimizer, server_optimizer=optimizer)
    run = start(one)
    split, party = run.networks[0].split, run.clients[0]
    head, rest, body = (copy.deepcopy(part) for part in (split.head, split, run.server.body))
    rest.head = torch.nn.Identity()
    ours = optimizer.build([*head.parameters(), *rest.parameters()])
    theirs = optimizer.build(body.parameters())
    for epoch in range(one.epochs):
        late = copy.deepcopy(head)  # the first batch of a turn waits for nothing
        for index in party.order(epoch):
            x, y = party.samples.x[index], party.samples.y[index]
            z = late(x)
            following = _with(copy.deepcopy(head), late)  # without this step
            if isinstance(protocol, Bypass):
                sent, home = rest.share(z)
                scores = rest.tail(rest.rejoin(body(sent), home))
            else:
                scores = rest.tail(body(z))
            cross_entropy(scores, y).backward()
            for own, found in zip(head.parameters(), late.parameters(), strict=True):
                own.grad = found.grad
            for optimizer_ in (ours, theirs):
                optimizer_.step()
                optimizer_.zero_grad()
            _with(head, late)
            late = following
    run.train()
    same(head.state_dict(), split.head.state_dict())
    same(rest.tail.state_dict(), split.tail.state_dict())
    same(body.state_dict(), run.server.body.state_dict())
    assert not all(
        torch.equal(*pair)
        for pair in zip(head.parameters(), start(one).networks[0].split.head.parameters(), strict=True)
    )


def _with(module, other):
    """Its weights, and the statistics of the other."""
    for own, found in zip(module.buffers(), other.buffers(), strict=True):
        own.copy_(found)
    return module


@pytest.mark.parametrize("guard", {type(guard): guard for guard in GUARDS}.values(), ids=repr)
def test_whatever_a_guard_keeps_its_step_is_that_of_its_own_weights(guard):
    """Against a client that computes each batch with a copy, made before the step before: nothing is shared."""
    if guard.exchange:
        return  # refused
    one = tiny_plan(guard=guard, batch_size=12)
    found = []
    for way in (_ahead, _with_copies):
        server = build_server(one.public(), TASK)
        client = build_client(one, TASK, 0, server.handle)
        told = way(client, server, batches(3, 12))
        found.append((told, client.split.state_dict() | server.body.state_dict()))
    assert found[0][0] == found[1][0]
    same(found[0][1], found[1][1])


def _ahead(client, server, given):
    return list(learn_ahead(client, iter(given), at_once(server.handle)))


def _with_copies(client, server, given):
    live, told = client.split.train(), []
    late = live  # the first batch waits for nothing; a guard may take its first weights from it
    for batch in given:
        late.tail = live.tail
        with seeded(batch.seed):
            terms = late.terms(batch, client.remote)
            following = _with(copy.deepcopy(live), late)
            sum(terms.values()).backward()
        for own, made in zip(live.parameters(), late.parameters(), strict=True):
            own.grad = made.grad
        client.optimizer.step()
        drop_gradients(client.optimizer)
        _with(live, late)
        told.append({name: float(term.detach()) for name, term in terms.items()})
        told[-1] |= {name: float(note) for name, note in late.guard.notes.items()}
        late = following
    return told


def test_a_head_that_does_not_train_cannot_be_late():
    one, usual = (trained(plan(frozen_parts=("head",), rounds=rounds, clients=2)) for rounds in (AHEAD, Relay()))
    same(one.tensors(), usual.tensors())
    assert one.ledger.as_dict() == usual.ledger.as_dict()


def test_not_ahead_is_the_plan_that_it_always_was():
    assert repr(Relay(ahead=0)) == "Relay()" and repr(SplitFed(ahead=0)) == "SplitFed()"
    usual, ahead = plan(rounds=Relay(ahead=0)), plan()
    assert usual == plan(rounds=Relay()) and usual.fingerprint() != ahead.fingerprint()
    assert spec(repr(AHEAD)) == AHEAD and "rounds=Relay(ahead=1)" in repr(ahead.public())


@pytest.mark.parametrize("rounds", [AHEAD, SplitFed(ahead=1)], ids=repr)
def test_a_run_goes_on_exactly_where_it_was_left(rounds):
    one = plan(
        rounds=rounds, clients=2, local_steps=3, net=TailDropout(), guard=Noise(scale=0.1), client_optimizer=Adam()
    )
    whole, left = trained(one), start(one)
    count = iter(range(100))
    assert not left.train(stop=lambda: next(count) == 3)
    again = start(one)
    again.restore(*left.snapshot())
    assert again.train()
    same(whole.tensors(), again.tensors())
    assert whole.ledger.as_dict() == again.ledger.as_dict()


@dataclass(frozen=True, repr=False)
class TailDropout(TinyNet):
    """Draws on both sides of an answer that it waits for."""

    def head(self, shape):
        return torch.nn.Sequential(super().head(shape), torch.nn.Dropout(0.3))

    def tail(self, shape, classes):
        return torch.nn.Sequential(torch.nn.Dropout(0.3), super().tail(shape, classes))


def test_random_numbers_are_those_of_their_step():
    """The same steps one after the other draw the same: weights of a rate of nothing are never late."""
    still = SGD(lr=1e-30)
    found = [
        trained(plan(net=TailDropout(norm="group"), client_optimizer=still, server_optimizer=still, rounds=rounds))
        for rounds in (AHEAD, Relay())
    ]
    assert [row["task"] for row in found[0].progress.history] == [row["task"] for row in found[1].progress.history]


# ---------------------------------------------------------------------------------- the order
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_the_next_batch_leaves_before_the_gradient_is_heard_and_the_server_is_asked_as_always(protocol):
    one = plan(protocol=protocol)
    server = build_server(one.public(), TASK)
    client = build_client(one, TASK, 0, server.handle)
    told = []

    def post(message):
        told.append(("sent", message.kind, message.step))
        answer = server.handle(message)
        return lambda: (told.append(("heard", message.kind, message.step)), answer)[1]

    assert len(list(learn_ahead(client, iter(batches(3)), post))) == client.steps == 3
    asks = Kind.FORWARD if protocol == UShaped() else Kind.LOSS
    sent = [one[1:] for one in told if one[0] == "sent"]
    assert sent == [(kind, step) for step in range(3) for kind in (asks, Kind.BACKWARD)]
    for step in range(2):
        assert told.index(("heard", asks, step)) < told.index(("sent", Kind.BACKWARD, step))
        assert told.index(("sent", asks, step + 1)) < told.index(("heard", Kind.BACKWARD, step))
        assert told.index(("heard", Kind.BACKWARD, step)) < told.index(("heard", asks, step + 1))


def client_of(one):
    server = build_server(one.public(), TASK)
    return build_client(one, TASK, 0, server.handle), server


def test_a_turn_that_is_given_up_hears_what_it_asked():
    """Whoever goes on with the conversation would take the answer for another one."""
    client, server = client_of(plan())
    heard = []

    def post(message):
        answer = server.handle(message)

        def hear():
            heard.append((message.kind, message.step))
            if heard[-1] == (Kind.BACKWARD, 1):
                raise NonFinite("lost")
            return answer

        return hear

    with pytest.raises(NonFinite, match="lost"):
        list(learn_ahead(client, iter(batches(5)), post))
    assert heard[-2:] == [(Kind.BACKWARD, 1), (Kind.FORWARD, 2)] and client.steps == 1


def test_whoever_stops_in_between_leaves_nothing_behind():
    client, server = client_of(plan())
    before, watchers, drawn = threading.active_count(), client.remote._watchers, torch.get_rng_state()
    steps = learn_ahead(client, iter(batches(5)), at_once(server.handle))
    next(steps)
    assert threading.active_count() == before + 1  # the next one stands
    steps.close()
    assert threading.active_count() == before and client.remote._watchers == watchers
    assert torch.equal(torch.get_rng_state(), drawn) and client.steps == 1


def test_a_step_that_fails_says_so():
    run = start(plan())
    run.clients[0].batch = lambda index, later: 1 / 0 if later else type(run.clients[0]).batch(run.clients[0], index)
    with pytest.raises(ZeroDivisionError):
        run.train()


# --------------------------------------------------------------------------------- stretches
def elsewhere(work):
    """As gradients on a GPU, which come in a thread of autograd's."""
    failed = []

    def stand():
        try:
            work.stand_still()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=stand)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("stands", [InStretches.stand_still, elsewhere])
def test_work_stands_still_where_it_says_and_has_its_own_numbers(stands):
    told = []

    def work(name):
        def draws():
            torch.manual_seed(name)
            for _ in range(3):
                told.append((name, float(torch.rand(()))))
                stands(stretches[name])
            return name

        return InStretches(draws, torch.device("cpu"))

    stretches = {name: work(name) for name in (1, 2)}
    one, other = stretches.values()
    torch.manual_seed(0)
    for _ in range(3):
        one.go_on()
        other.go_on()
    mine = float(torch.rand(()))
    one.go_on()
    one.go_on()  # it is over
    other.give_up()
    for name in (1, 2):
        torch.manual_seed(name)
        assert [number for who, number in told if who == name] == [float(torch.rand(())) for _ in range(3)]
    torch.manual_seed(0)
    assert mine == float(torch.rand(())) and (one.found, other.found) == (1, None)


def test_what_is_kept_for_the_way_back_does_not_change():
    layer = torch.nn.Linear(3, 2)
    layer.register_buffer("scale", torch.full((2,), 2.0))
    x = torch.rand(4, 3, requires_grad=True)
    wanted = (layer(x) * layer.scale).sum()
    (wanted,) = torch.autograd.grad(wanted, x)
    with kept_as_they_are(layer):
        found = (layer(x) * layer.scale).sum()
    with torch.no_grad():
        layer.weight.add_(1)
        layer.scale.mul_(3)
    found.backward()
    assert torch.equal(x.grad, wanted)


# ---------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"local_steps": 1}, "take local_steps=2 or more, or 0"),
        ({"micro_batches": 2}, "micro_batches=1"),
        ({"protocol": Federated(), "rounds": SplitFed(ahead=1)}, "nothing crosses in Federated"),
        ({"roles": Frozen(share=0.5), "clients": 2}, "roles=AllActive"),
        ({"roles": SendOnce(split=1)}, "roles=AllActive"),
        ({"client_detectors": (GradientScrutinizer(),)}, "one step at a time"),
        ({"guard": DPSGD(), "net": TinyNet(norm="group")}, "reads the gradients"),
        ({"guard": Chain(LightSplit(ratio=4), LFQ(bits=3))}, "there is no between"),
    ],
    ids=str,
)
def test_plans_in_which_nothing_can_be_ahead_are_refused(changes, why):
    with pytest.raises(ValueError, match=why) as error:
        plan(**changes)
    assert "ahead=1" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [2, -1, 0.5, "one", True])
def test_one_batch_is_ahead_or_none(wrong):
    for rounds in (Relay, SplitFed):
        with pytest.raises(ValueError, match="ahead"):
            rounds(ahead=wrong)
    with pytest.raises(TypeError):
        Wave(ahead=1)
