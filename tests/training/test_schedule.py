"""Schedules and roles: who learns when, what is merged, and what a frozen client does not do."""

import math
from dataclasses import replace

import pytest
import torch
from fleet import GROUPED, PLAIN, body_of, plan, same, start, trained
from toys import TinyNet, tiny_plan

from cutlayer.core.errors import NonFinite
from cutlayer.core.message import Kind, Message
from cutlayer.core.spec import spec
from cutlayer.core.state import named
from cutlayer.data.partitions import Dirichlet
from cutlayer.detectors import ConsensusCosine
from cutlayer.guards import DPSGD, LFQ, LightSplit, NoGuard, Noise
from cutlayer.rules import FedAdam, FedAvg, FedAvgM, FedMuon, FedProx, Krum, Median, Scaffold
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import AllActive, Frozen
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave, epoch_rounds
from cutlayer.training.protocols import Bypass, Federated, UShaped, Vanilla
from cutlayer.training.step import export, learn


# ------------------------------------------------------------------------------ who and when
def turns(rounds, batches, length=1, roles=None, take=None, **place):
    found = epoch_rounds(rounds, roles or AllActive(), batches, length, take, **place)
    return [[turn[:3] for turn in one] for one in found]


def test_a_round_has_the_next_batches_of_everybody_who_has_some_left():
    assert turns(SplitFed(), [3, 1, 2], 2) == [[(0, 0, 2), (1, 0, 1), (2, 0, 2)], [(0, 2, 3)]]
    assert turns(Wave(), [2, 0, 1]) == [[(0, 0, 1), (2, 0, 1)], [(0, 1, 2)]]
    assert turns(SplitFed(), [3, 1], 0) == [[(0, 0, 3), (1, 0, 1)]]
    assert turns(Relay(), [1, 1]) == [[(0, 0, 1)], [(1, 0, 1)]]
    assert turns(SplitFed(), [0, 0]) == []


def test_splitfed_is_version_one_unless_asked_otherwise():
    assert SplitFed() == SplitFed(version=1) and SplitFed().own_bodies and not SplitFed(version=2).own_bodies


def test_version_two_draws_the_order_of_every_round():
    drawn = [tuple(turn[0] for turn in one) for one in turns(SplitFed(version=2), [20] * 4, seed=3)]
    assert all(sorted(one) == [0, 1, 2, 3] for one in drawn) and len(set(drawn)) > 5
    assert drawn == [tuple(turn[0] for turn in one) for one in turns(SplitFed(version=2), [20] * 4, seed=3)]
    assert turns(SplitFed(version=2), [20] * 4, seed=3) != turns(SplitFed(version=2), [20] * 4, seed=3, epoch=1)


@pytest.mark.parametrize("rounds", [Relay(), Wave(), SplitFed()], ids=repr)
def test_so_many_clients_are_drawn_for_a_pass_and_all_of_them_in_the_long_run(rounds):
    passes: dict[int, list[int]] = {}
    for one in turns(rounds, [30] * 5, take=2):
        for client, first, _ in one:
            passes.setdefault(first, []).append(client)
    assert all(len(set(clients)) == len(clients) == 2 for clients in passes.values()) and len(passes) == 30
    heard = [sum(client in clients for clients in passes.values()) for client in range(5)]
    assert sum(heard) == 60 and min(heard) >= 4


# -------------------------------------------------------------------------------------- waves


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
@pytest.mark.usefixtures("double")
def test_a_wave_is_one_step_on_all_batches_together(protocol):
    """Without BatchNorm: heads and body after a wave of three clients = after one client's step on all batches."""
    fields = {
        "protocol": protocol,
        "net": GROUPED,
        "client_optimizer": PLAIN,
        "server_optimizer": PLAIN,
        "epochs": 1,
    }
    wave = start(plan(rounds=Wave(), partition=Dirichlet(alpha=2.0), **fields))
    single = start(tiny_plan(**{**fields, "batch_size": 60}))
    fed = []
    for client in wave.clients:
        client.batch = lambda index, make=client.batch: (fed.append(make(index)), fed[-1])[1]
    wave.take(wave.timetable.rounds(0)[0])
    assert len(fed) == 3 and len({len(batch) for batch in fed}) >= 1
    whole = replace(
        fed[0],
        x=torch.cat([batch.x for batch in fed]),
        y=torch.cat([batch.y for batch in fed]),
        s={name: torch.cat([batch.s[name] for batch in fed]) for name in fed[0].s},
    )
    learn(single.networks[0], whole)
    for name, tensor in single.server.body.state_dict().items():
        torch.testing.assert_close(wave.server.body.state_dict()[name], tensor, rtol=1e-9, atol=1e-11)
    for name, tensor in named(single.networks[0].split).items():
        torch.testing.assert_close(wave.coordinator.shared[name], tensor, rtol=1e-9, atol=1e-11)
    assert wave.server.bodies.updates == 1


@pytest.mark.usefixtures("double")
def test_even_weights_are_the_mean_of_the_clients_gradients():
    """Madill 2025, Eq. 4.1: a client with few samples counts as much as one with many."""
    fields = {
        "net": GROUPED,
        "server_optimizer": PLAIN,
        "epochs": 1,
        "batch_size": 60,
        "shared_client_network": False,
        "partition": Dirichlet(alpha=0.5),
    }
    moved = {}
    for weights in ("rows", "even"):
        run = start(plan(rounds=Wave(weights=weights), **fields))
        before = body_of(run)
        sizes = [len(client.order(0)[0]) for client in run.clients]
        run.take(run.timetable.rounds(0)[0])
        moved[weights] = {name: tensor - before[name] for name, tensor in body_of(run).items()}
    assert len(set(sizes)) > 1
    alone = []
    for number in range(3):
        run = start(plan(rounds=Wave(weights="even"), **fields))
        before = body_of(run)
        run.take([turn for turn in run.timetable.rounds(0)[0] if turn.client == number])
        alone.append({name: tensor - before[name] for name, tensor in body_of(run).items()})
    for name in alone[0]:
        torch.testing.assert_close(moved["even"][name], sum(one[name] for one in alone) / 3)
        weighted = sum(one[name] * size for one, size in zip(alone, sizes, strict=True)) / sum(sizes)
        torch.testing.assert_close(moved["rows"][name], weighted)


FUSABLE = {
    "U-shaped": plan(rounds=Wave(fused=True), net=GROUPED),
    "vanilla, unequal batches": plan(
        rounds=Wave(fused=True), net=GROUPED, protocol=Vanilla(), partition=Dirichlet(alpha=1.0)
    ),
    "bypass, own heads, even": plan(
        rounds=Wave(fused=True, weights="even"),
        net=GROUPED,
        protocol=Bypass(),
        shared_client_network=False,
        client_optimizer=PLAIN,
    ),
    "a guard with a lift": plan(rounds=Wave(fused=True), net=GROUPED, guard=LightSplit(ratio=4)),
}


@pytest.mark.parametrize("fused", FUSABLE.values(), ids=FUSABLE)
def test_fused_is_one_by_one(fused):
    """Without BatchNorm the same weights, and the same dz to 1e-6."""
    heard: dict[bool, list] = {True: [], False: []}

    def listen(into):
        def watcher(message, handle):
            reply = handle(message)
            into.append((message.kind, message.client, message.step, dict(reply.tensors)))
            return reply

        return watcher

    runs = {}
    for how in (True, False):
        one = replace(fused, rounds=replace(fused.rounds, fused=how))
        runs[how] = trained(one, at_server=[listen(heard[how])])
    ours, theirs = runs[True].tensors(), runs[False].tensors()
    assert ours.keys() == theirs.keys() and runs[True].ledger.messages == runs[False].ledger.messages
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)
    # In the first wave both start alike, so what comes back can be compared as it is.
    gradients = [
        {c: t["dz"] for k, c, step, t in heard[how] if k is Kind.BACKWARD and step == 0} for how in (True, False)
    ]
    assert gradients[0].keys() == gradients[1].keys() != set()
    for client, dz in gradients[0].items():
        torch.testing.assert_close(dz, gradients[1][client], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("net", "which"), [(TinyNet(), "BatchNorm"), (TinyNet(norm="group", dropout=0.5), "Dropout")], ids=repr
)
def test_fusing_is_refused_where_batches_would_see_each_other(net, which):
    with pytest.raises(ValueError, match=which):
        start(plan(rounds=Wave(fused=True), net=net))


# ------------------------------------------------------------------------------------- merges
def test_one_client_that_merges_after_every_step_is_split_learning():
    """With plain SGD there is no state to lose: SplitFed of one client = a relay of one client."""
    fields = {"clients": 1, "client_optimizer": PLAIN, "server_optimizer": PLAIN}
    alone, relay = trained(plan(rounds=SplitFed(), **fields)), trained(plan(**fields))
    for name, tensor in relay.server.body.state_dict().items():
        torch.testing.assert_close(alone.server.body.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)
    for name, tensor in named(relay.networks[0].split).items():
        torch.testing.assert_close(named(alone.networks[0].split)[name], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("protocol", [Federated(), UShaped(), Vanilla()], ids=repr)
@pytest.mark.usefixtures("double")
def test_full_batches_merged_after_every_step_are_centralised_descent(protocol):
    """K=1 full-batch FedAvg = SGD on all data (specs, acceptance 12), with and without a cut."""
    fields = {
        "protocol": protocol,
        "net": GROUPED,
        "batch_size": 100,
        "epochs": 4,
        "client_optimizer": PLAIN,
        "server_optimizer": PLAIN,
    }
    many = trained(plan(rounds=SplitFed(), partition=Dirichlet(alpha=1.0), **fields))
    central = trained(plan(**fields, clients=1))
    ours, theirs = many.network(), central.network()
    assert ours is not None and theirs is not None and ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rounds", [SplitFed(), Wave(), Wave(fused=True)], ids=repr)
@pytest.mark.parametrize("protocol", [Federated(), UShaped(), Vanilla()], ids=repr)
@pytest.mark.usefixtures("double")
def test_optimizers_live_on_between_rounds(protocol, rounds):
    """Full batches, with momentum: the mean of the clients' momenta is the momentum of the mean gradient."""
    if rounds.waves and protocol == Federated():
        pytest.skip("nothing crosses that could come in waves")
    momentum = SGD(lr=0.05, momentum=0.9)
    fields = {
        "protocol": protocol,
        "net": GROUPED,
        "batch_size": 100,
        "epochs": 4,
        "client_optimizer": momentum,
        "server_optimizer": momentum,
    }
    many = trained(plan(rounds=rounds, partition=Dirichlet(alpha=1.0), **fields)).network()
    central = trained(plan(**fields, clients=1)).network()
    for name, tensor in central.items():
        torch.testing.assert_close(many[name], tensor, rtol=1e-9, atol=1e-11)
    if not rounds.waves:
        stateless = trained(
            plan(rounds=replace(rounds, fresh=True), partition=Dirichlet(alpha=1.0), **fields)
        ).network()
        assert any((stateless[name] - tensor).abs().max() > 1e-4 for name, tensor in central.items())


def test_even_weights_are_even_for_heads_too():
    run = start(plan(rounds=Wave(weights="even"), net=GROUPED, batch_size=60, partition=Dirichlet(alpha=0.5)))
    brought, ask = {}, run.carrier.ask
    run.carrier.ask = lambda client, order: brought.setdefault((client, order.step), ask(client, order))
    run.take(run.timetable.rounds(0)[0])
    mine = [message for message in brought.values() if int(message["samples"])]
    assert len({int(message["samples"]) for message in mine}) > 1
    for name in (name for name in run.coordinator.shared if name.startswith("net.")):
        torch.testing.assert_close(run.coordinator.shared[name], sum(message[name] for message in mine) / len(mine))


def test_who_is_left_out_of_a_wave_does_not_move_the_body():
    run, without = start(plan(rounds=Wave())), start(plan(rounds=Wave()))
    ask = run.carrier.ask

    def spoilt(client, order):
        answer = ask(client, order)
        if client != 1:
            return answer
        tensors = {name: t * math.nan if name.startswith("net.") else t for name, t in answer.tensors.items()}
        return replace(answer, tensors=tensors)

    run.carrier.ask = spoilt
    run.take(run.timetable.rounds(0)[0])
    assert [one["client"] for one in run.coordinator.rejected] == [1]
    without.take([turn for turn in without.timetable.rounds(0)[0] if turn.client != 1])
    learnt = dict(run.server.body.named_parameters())
    same(learnt, dict(without.server.body.named_parameters()))


@pytest.mark.parametrize("fused", [False, True])
def test_numbers_too_large_for_the_others_are_left_out_of_a_wave(fused):
    """A batch that would make BatchNorm's statistics, or the sum of gradients, infinite."""
    net = GROUPED if fused else TinyNet()
    run = start(plan(rounds=Wave(fused=fused), net=net, epochs=1))
    send = run.clients[1].network.remote._send

    def loud(message):
        big = {
            n: t * 1e25 if n == "z" and not fused else t * 3e37 if n == "du" and fused else t
            for n, t in message.tensors.items()
        }
        return send(replace(message, tensors=big, packed={}))

    run.clients[1].network.remote._send = loud
    assert run.train() and run.coordinator.rejected
    assert all(torch.isfinite(t).all() for t in run.tensors().values() if t.is_floating_point())


def test_too_few_updates_for_a_robust_rule_are_not_merged():
    """Else whoever has the most batches decides alone when the others are through."""
    run = start(plan(rounds=SplitFed(), rule=Median(), epochs=1))
    run.take(run.timetable.rounds(0)[0])
    before = dict(run.coordinator.shared)
    run.take([turn for turn in run.timetable.rounds(0)[1] if turn.client == 0])
    same(run.coordinator.shared, before)
    assert "needs 3" in run.coordinator.rejected[-1]["why"]


def test_guarded_clients_stay_guarded_when_networks_sleep(monkeypatch):
    monkeypatch.setattr("cutlayer.engines.local.pool.AWAKE", 2)
    spread: dict[int, list[float]] = {}

    def listen(message, handle):
        if message.kind is Kind.FORWARD:
            spread.setdefault(message.client, []).append(float(message["z"].std()))
        return handle(message)

    trained(plan(clients=6, guarded_clients=3, guard=Noise(scale=5.0), epochs=2, batch_size=4), at_server=[listen])
    assert min(min(spread[client]) for client in range(3)) > 3 > max(max(spread[client]) for client in range(3, 6))


def test_a_body_of_ones_own_starts_from_the_merged_one_and_leaves_no_copy_behind():
    run = start(plan(rounds=SplitFed(), local_steps=2))
    before = body_of(run)
    seen = []
    watch = run.server.bodies.collect
    run.server.bodies.collect = lambda client: seen.append(client) or watch(client)
    run.take(run.timetable.rounds(0)[0])
    assert seen == [0, 1, 2] and not run.server.bodies._own
    assert any(not torch.equal(before[name], tensor) for name, tensor in body_of(run).items())


def test_heads_start_alike_in_every_round():
    run = start(plan(rounds=SplitFed(version=2), local_steps=1))
    begun = []
    for client in run.clients:
        take = client.take_over
        client.take_over = lambda order, client=client, take=take: (
            take(order),
            begun.append(named(client.network.split)),
        )
    run.take(run.timetable.rounds(0)[0])
    assert len(begun) == 4  # one was asked for its weights first
    for state in begun[2:]:
        same(state, begun[1])
    assert run.server.bodies.updates == 3


def test_nothing_of_the_rule_is_shown_to_clients():
    heard = []
    run = start(plan(rounds=SplitFed(), rule=FedAdam(), epochs=1))
    ask = run.carrier.ask
    run.carrier.ask = lambda client, order: heard.extend(order.tensors) or ask(client, order)
    run.train()
    assert run.coordinator.memory and all(name.startswith("rule.") for name in run.coordinator.memory)
    assert {name.split(".")[0] for name in heard} == {"turn", "net", "stat"}
    assert {name.split(".")[0] for name in run.coordinator.shared} == {"net", "stat"}


RESUMED = {
    "Adam at the server": plan(rounds=SplitFed(), rule=FedAdam(lr=0.05), local_steps=2),
    "Muon, own heads": plan(rounds=SplitFed(), rule=FedMuon(), shared_client_network=False),
    "momentum that lives on": plan(rounds=SplitFed(), client_optimizer=Adam(), server_optimizer=Adam()),
    "momentum that does not": plan(rounds=SplitFed(fresh=True), local_steps=2, client_optimizer=Adam()),
    "control variates": plan(rounds=SplitFed(version=2), rule=Scaffold(), local_steps=2, client_optimizer=PLAIN),
    "a wave, Adam": plan(rounds=Wave(), client_optimizer=Adam(), server_optimizer=Adam()),
    "drawn clients": plan(rounds=SplitFed(), clients_per_round=2, rule=FedAvgM()),
    "frozen, heads of their own": plan(roles=Frozen(share=0.4, inherit=0)),
    "frozen, now and then a head": plan(roles=Frozen(share=0.4, inherit=2), protocol=Vanilla()),
    "federated": plan(protocol=Federated(), rounds=SplitFed(), rule=FedAvgM(), local_steps=2),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("plan", RESUMED.values(), ids=RESUMED)
def test_a_run_goes_on_exactly_where_it_was_left(plan):
    whole = trained(plan)
    rounds = sum(len(whole.timetable.rounds(epoch)) for epoch in range(plan.epochs))
    for after in {1, rounds // 2, rounds - 1}:
        first, count = start(plan), iter(range(10_000))
        assert not first.train(stop=lambda count=count, after=after: next(count) >= after)
        second = start(plan)
        second.restore(*first.snapshot())
        assert second.train()
        same(second.tensors(), whole.tensors())
        assert second.ledger.as_dict() == whole.ledger.as_dict()


# --------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize("rounds", [SplitFed(), SplitFed(version=2), Wave(), Wave(fused=True)], ids=repr)
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_a_client_whose_numbers_are_gone_is_left_out_and_the_round_goes_on(rounds, protocol):
    fields = {"net": GROUPED, "rounds": rounds, "protocol": protocol, "epochs": 1}
    run = start(plan(**fields))
    run.clients[1].batch = _with_nan(run.clients[1].batch)
    assert run.train()
    assert {one["client"] for one in run.coordinator.rejected} == {1} and len(
        run.coordinator.rejected
    ) == run.timetable.batches[1]
    assert "NaN" in run.coordinator.rejected[0]["why"] and run.progress.history[-1]["rejected"] == len(
        run.coordinator.rejected
    )
    assert all(torch.isfinite(t).all() for t in run.tensors().values() if t.is_floating_point())
    # Nothing of it stays: the others' run without it is the same run.
    if not rounds.waves and protocol == UShaped() and rounds.own_bodies:
        other = start(plan(**fields))
        for number, one in enumerate(other.timetable.rounds(0)):
            other.turn = number
            other.take([turn for turn in one if turn.client != 1])
        same(other.server.body.state_dict(), run.server.body.state_dict())


def _with_nan(make):
    def batch(index):
        made = make(index)
        return replace(made, x=torch.full_like(made.x, math.nan))

    return batch


def test_if_all_are_left_out_everything_stays_as_it_was():
    run = start(plan(rounds=SplitFed(), epochs=1))
    body = body_of(run)
    for client in run.clients:
        client.batch = _with_nan(client.batch)
    with pytest.raises(NonFinite, match="every update of epoch 1"):
        run.train()
    assert len(run.coordinator.rejected) == sum(run.timetable.batches)
    same(body_of(run), body)


IMPOSSIBLE = {
    "more than there are": ({"clients_per_round": 4}, "1 to 3"),
    "nobody": ({"clients_per_round": 0}, "1 to 3"),
    "all frozen": ({"roles": Frozen(share=0.9)}, "at least one"),
    "none frozen": ({"roles": Frozen(share=0.1)}, "at least one"),
    "a merge in a relay": ({"rule": FedAvg()}, "SplitFed"),
    "many batches in a wave": ({"rounds": Wave(), "local_steps": 2}, "local_steps=1"),
    "pieces in a wave": ({"rounds": Wave(), "micro_batches": 2}, "micro_batches=1"),
    "watched by the server in a fused wave": (
        {"rounds": Wave(fused=True), "server_detectors": (ConsensusCosine(),)},
        "no fused waves",
    ),
    "frozen in a fused wave": ({"rounds": Wave(fused=True), "roles": Frozen(share=0.4)}, "fused=False"),
    "fused where no body is a server's": ({"rounds": Wave(fused=True), "protocol": Federated()}, "fused=False"),
    "nothing that trains": (
        {"protocol": Federated(), "rounds": Wave(), "frozen_parts": ("head", "body", "tail")},
        "take fewer frozen_parts",
    ),
    "control variates of copies": ({"rounds": SplitFed(), "rule": Scaffold()}, "version=2"),
    "too few for a robust rule": ({"rounds": SplitFed(), "rule": Krum(bad=1)}, "needs 5"),
    "too few are drawn for it": (
        {"rounds": SplitFed(), "rule": Krum(bad=1), "clients": 9, "clients_per_round": 4},
        "needs 5",
    ),
    "control variates of momentum": ({"rounds": SplitFed(version=2), "rule": Scaffold()}, "momentum=0"),
    "two that write gradients": (
        {"rounds": SplitFed(), "rule": FedProx(), "guard": DPSGD(), "net": GROUPED},
        "which DPSGD",
    ),
    "a guard where nothing crosses": (
        {"protocol": Federated(), "rounds": SplitFed(), "guard": LightSplit(ratio=4)},
        "nothing",
    ),
    "alone, and nothing crosses": (
        {"protocol": Federated(), "rounds": SplitFed(), "shared_client_network": False},
        "merged",
    ),
    "a decoder that is exchanged": ({"rounds": SplitFed(), "guard": LFQ(bits=3)}, "one client at a time"),
    "a decoder exchanged in a wave": ({"rounds": Wave(), "guard": LFQ(bits=3)}, "one client at a time"),
    "a rule without anything to merge": (
        {"rounds": SplitFed(version=2), "rule": FedMuon(), "shared_client_network": False},
        "nothing to merge",
    ),
    "too few that learn": (
        {"rounds": SplitFed(), "rule": Krum(bad=1), "clients": 6, "roles": Frozen(share=0.5)},
        "needs 5",
    ),
    "rounds of another kind": ({"rounds": "SplitFed"}, "cutlayer list rounds"),
    "roles of another kind": ({"roles": NoGuard()}, "cutlayer list roles"),
}


@pytest.mark.parametrize(("changes", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_work_is_refused_before_anything_is_built(changes, why):
    with pytest.raises(ValueError, match=why):
        plan(**changes)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: SplitFed(version=3), "version"),
        (lambda: Wave(weights="size"), "rows"),
        (lambda: Frozen(share=0), "share"),
        (lambda: Frozen(share=1), "share"),
        (lambda: Frozen(inherit=-1), "passes"),
        (lambda: Frozen(rotate=2, inherit=0), "inherit=1"),
    ],
)
def test_impossible_settings(make, why):
    with pytest.raises(ValueError, match=why):
        make()


def test_rounds_that_merge_take_the_mean_unless_told_otherwise():
    assert plan(rounds=SplitFed()).rule == FedAvg() and plan(rounds=Wave(), rule=Median()).rule == Median()
    assert plan().rule.merges is False
    whole = plan(rounds=SplitFed(version=2), roles=Frozen(share=0.4), clients_per_round=2, rule=FedMuon(lr=0.1))
    assert spec(repr(replace(whole, net=Plan().net)), "plans") == replace(whole, net=Plan().net)


def test_one_state_for_all_is_what_export_says_it_is():
    """Statistics are data, and go by another name than what is learnt."""
    state = export(start(plan()).networks[0])
    assert {"net.head.1.weight", "stat.head.1.running_mean", "stat.head.1.num_batches_tracked"} <= state.keys()
    assert not any("running" in name for name in state if name.startswith("net."))


def test_a_client_whose_numbers_are_gone_brings_the_weights_it_was_given(monkeypatch):
    run = start(plan(rounds=SplitFed()))
    client, turn = run.clients[0], run.timetable.rounds(0)[0][0]

    def lost(*given, **more):
        with torch.no_grad():
            next(client.network.split.parameters()).fill_(float("nan"))
        raise NonFinite("gone")

    order = Message(Kind.WEIGHTS, 0, 0, {"turn": torch.tensor([0, turn.first, turn.last, 0])})
    before = {name: tensor.clone() for name, tensor in client.network.split.state_dict().items()}
    monkeypatch.setattr(client, "learn", lost)
    done = client.handle(order)
    assert int(done["samples"]) == 0
    brought = {name.split(".", 1)[1]: t for name, t in done.tensors.items() if name.startswith(("net.", "stat."))}
    assert brought.keys() == before.keys() and all(torch.equal(t, before[name]) for name, t in brought.items())
    assert not any(name.startswith("optimizer.") for name in done.tensors)
