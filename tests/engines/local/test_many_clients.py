"""Many clients in one process: the same numbers however few networks are awake; who sleeps costs hardly anything."""

import weakref

import pytest
import torch
from rotation import and_the_rest
from toys import TASK, TinyNet, samples, tiny_parts, tiny_plan

from cutlayer.bench import clients as bench_clients
from cutlayer.bench import run as bench
from cutlayer.data.base import Parts
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.local import carrier, pool
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, LightSplit, NoGuard, Noise, Shredder
from cutlayer.nets.base import scores_shape, shapes
from cutlayer.rules import FedAvgM, Scaffold
from cutlayer.training import build as parties
from cutlayer.training.client import Client
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Federated, UShaped, Vanilla

PLAIN = SGD(lr=0.05, momentum=0.0)
KINDS = {
    "relay": {},
    "relay, Adam": {"client_optimizer": Adam(), "server_optimizer": Adam()},
    "vanilla": {"protocol": Vanilla()},
    "own heads": {"shared_client_network": False},
    "own heads, Adam": {"shared_client_network": False, "client_optimizer": Adam()},
    "own heads, a secret guard": {"shared_client_network": False, "guard": Shredder(tensors=3, target=0.2)},
    "guarded": {"shared_client_network": False, "guard": LightSplit(ratio=4)},
    "some guarded": {"shared_client_network": False, "guard": Noise(scale=0.1), "guarded_clients": 2},
    "some guarded, shared": {"guard": Noise(scale=0.1), "guarded_clients": 2, "rounds": SplitFed(version=2)},
    "SplitFed 1": {"rounds": SplitFed(), "local_steps": 2},
    "SplitFed 2, Adam": {"rounds": SplitFed(version=2), "client_optimizer": Adam()},
    "wave": {"rounds": Wave(), "rule": FedAvgM()},
    "wave, own heads": {"rounds": Wave(), "shared_client_network": False},
    "Scaffold": {"rounds": SplitFed(version=2), "rule": Scaffold(), "local_steps": 2, "client_optimizer": PLAIN},
    "frozen": {"roles": Frozen(share=0.4)},
    "frozen, heads kept": {"roles": Frozen(share=0.4, inherit=0)},
    "frozen, now and then": {"roles": Frozen(share=0.4, inherit=2), "rounds": SplitFed(version=2)},
    "frozen, changing": {"roles": Frozen(share=0.4, rotate=1), "protocol": Vanilla()},
    "some of them": {"clients_per_round": 2, "shared_client_network": False},
    "federated": {"protocol": Federated(), "rounds": SplitFed(), "local_steps": 2},
    "pieces": {"micro_batches": 2, "shared_client_network": False},
    "ahead": {"rounds": SplitFed(version=2, ahead=1), "local_steps": 2},
}


def plan(**changes):
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "clients": 5, "partition": Dirichlet(alpha=2.0), **changes})


def start(plan, parts=None):
    return LocalRun(plan, parts or tiny_parts(), classes=TASK.classes)


def finished(plan, awake, monkeypatch):
    monkeypatch.setattr(pool, "AWAKE", awake)
    run = start(plan)
    assert run.train()
    tensors, facts = run.snapshot()
    del facts["seconds"]
    facts["history"] = [{**row, "seconds": 0} for row in facts["history"]]
    facts["accuracies"] = run.evaluate(run.parts.test)
    return run, tensors, facts


# Every kind with one network awake or with two, in turn; both are campaign.
TURNS = [(kind, 1 + turn % 2) for turn, kind in enumerate(KINDS)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kind", "awake"), and_the_rest(TURNS, KINDS, [1, 2]))
def test_how_many_networks_are_awake_changes_no_bit(kind, awake, monkeypatch):
    many, theirs, their_facts = finished(plan(**KINDS[kind]), 32, monkeypatch)
    few, ours, our_facts = finished(plan(**KINDS[kind]), awake, monkeypatch)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert our_facts == their_facts, "history, steps, accuracies and the bytes of every kind of message"
    assert sum(one.awake for one in few.clients) <= awake < 3 <= sum(one.awake for one in many.clients)


@pytest.mark.parametrize("kind", ["relay, Adam", "own heads, Adam", "frozen, heads kept", "Scaffold"])
def test_a_run_of_sleepers_is_carried_on_exactly(kind, monkeypatch):
    _, theirs, _ = finished(plan(**KINDS[kind]), 32, monkeypatch)
    monkeypatch.setattr(pool, "AWAKE", 1)
    first, stops = start(plan(**KINDS[kind])), iter([False] * 3 + [True])
    assert not first.train(stop=lambda: next(stops))
    second = start(plan(**KINDS[kind]))
    second.restore(*first.snapshot())
    assert second.train()
    ours = second.snapshot()[0]
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("kind", ["relay", "own heads, Adam", "SplitFed 1", "guarded", "frozen, heads kept"])
def test_never_more_networks_than_may_be_awake_and_one(kind, monkeypatch):
    alive, most = weakref.WeakSet(), [0]

    def build(*given):
        client = parties.build_client(*given)
        alive.add(client.split)
        most[0] = max(most[0], len(alive))
        return client

    monkeypatch.setattr(pool, "build_client", build)
    finished(plan(**KINDS[kind], epochs=3), 2, monkeypatch)
    assert 2 <= most[0] <= 3


def test_a_network_is_built_once_where_no_guard_has_secrets(monkeypatch):
    built = []

    def build(plan, task, number, *rest):
        built.append(number)
        return parties.build_client(plan, task, number, *rest)

    monkeypatch.setattr(pool, "build_client", build)
    finished(plan(shared_client_network=False), 2, monkeypatch)
    assert sorted(built) == [0, 1, 2, 3, 4], "each head once, for its own first weights"
    built.clear()
    run, *_ = finished(plan(shared_client_network=False, guard=LightSplit(ratio=4)), 2, monkeypatch)
    assert len(built) > 5 and not run.clients[0].spares, "no client gets a guard that was another's"


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.campaign)])
def test_very_many_clients_with_a_batch_each_learn_an_epoch(count):
    data = Parts(samples(2 * count, 1), samples(12, 2), samples(60, 3), samples(40, 4))
    run = start(
        plan(clients=count, shared_client_network=False, epochs=1, batch_size=2, partition=tiny_plan().partition),
        data,
    )
    assert run.train() and run.progress.step == count
    assert sum(one.awake for one in run.clients) <= pool.AWAKE
    assert all(one._samples is None for one in run.clients if not one.awake), "samples lie in one place"
    assert run.server.pending.last == run.server.pending.held == {}, "nor does the server keep anything of a client"
    assert len(run.evaluate(run.parts.test)) == count
    assert len(run.progress.history) == 1 and 0 <= run.progress.history[0]["val"] <= 1


def test_many_heads_share_the_held_out_samples_evenly(monkeypatch):
    monkeypatch.setattr(carrier, "PASSES", 2)
    run = start(plan(shared_client_network=False))
    seen = []
    for one in run.clients:
        monkeypatch.setattr(one, "evaluate", lambda purpose, epoch, part: (seen.append(part), (1, 2))[1])
    assert run.evaluate(run.parts.test) == [0.5] * 5
    have = len(run.parts.test)
    assert {len(part) for part in seen} == {have * 2 // 5}, "together twice the data, whoever many there are"
    every = torch.cat([part.x for part in seen]).flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(every) == have and set(every.tolist()) == {2}
    seen.clear()
    monkeypatch.setattr(carrier, "PASSES", 5)
    run.evaluate(run.parts.test)
    assert all(part is run.parts.test for part in seen)


def test_looking_at_one_client_wakes_no_other():
    run = start(plan())
    assert run.networks[3].number == 3 and len(run.networks) == len(run.samples) == 5
    assert [one.awake for one in run.clients] == [True, False, False, True, False]
    assert len(run.samples[2]) == run.clients[2].own.count and not run.clients[2].awake
    assert torch.equal(run.clients[4].own.labels, run.samples[4].y)


def test_a_batch_is_the_same_read_from_the_pool_or_from_samples_of_its_own():
    run = start(plan(clients=3))
    client = run.clients[1]
    index = client.order(0)[0]
    from_pool = client.batch(index)
    assert len(client.samples) == client.own.count < len(client.own.pool)  # looked at: from now on it has a copy
    copied = client.batch(index)
    assert torch.equal(from_pool.x, copied.x) and torch.equal(from_pool.y, copied.y) and from_pool.seed == copied.seed


def test_shapes_are_computed_once_for_equal_networks():
    built = []

    class Counting(TinyNet):
        def head(self, shape):
            built.append(shape)
            return super().head(shape)

    for _ in range(3):
        assert shapes(Counting(), TASK.shape) == ((4, 5, 5), (7,))
        assert scores_shape(Counting(), TASK.shape, 3) == (3,)
    assert len(built) == 1
    assert shapes(Counting(), (1, 14, 14)).z == (4, 6, 6) and len(built) == 2
    Counting.__hash__ = None  # such as one with a list in it
    assert shapes(Counting(), TASK.shape) == shapes(TinyNet(), TASK.shape) and len(built) == 3


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_a_client_with_private_gradients_may_be_frozen(protocol):
    fields = {"protocol": protocol, "net": TinyNet(norm="group"), "guard": DPSGD(clip=1.0)}
    assert start(plan(**fields, roles=Frozen(share=0.4))).train()


# ------------------------------------------------------------------------------------ benchmarks
def test_both_ways_of_a_body_give_the_same_gradients():
    ours, theirs = (way() for way in bench_clients.both_ways(3, TinyNet(norm="group"), TASK, clients=4))
    bench_clients._refuse_other_gradients(ours, theirs)
    ours[2][0, 0, 0, 0] += 1e-3
    with pytest.raises(RuntimeError, match="dz differs"):
        bench_clients._refuse_other_gradients(ours, theirs)


@pytest.mark.campaign
def test_the_benchmarks_of_many_clients_run(monkeypatch):
    assert bench_clients.ENTRIES.items() <= bench.ENTRIES.items()
    few = bench_clients._against_few(20, 10, passes=1)
    loop = bench_clients._against_a_loop(20, passes=1)
    assert few.ratio > 0 and loop.value > 0
    assert bench_clients.frozen_memory(True).ratio > 0
    told = {
        "waiting(100, 200)": "1000000",
        "waiting(200, 200)": "3540000",
    }  # 25,400 B a client, 24,360 of them weights
    monkeypatch.setattr(bench_clients, "_in_a_fresh_process", told.get)
    assert bench_clients.clients_idle(True).value == pytest.approx(1.04)
    assert bench_clients.fusion_b4(True) is None, "left out where no process can be started"


def test_the_plain_loop_learns_from_the_same_samples():
    run = bench_clients.crowd(10, 80)
    assert isinstance(run.plan.guard, NoGuard) and [one.batches for one in run.clients] == [1] * 10
    loop = bench_clients.plain_loop(run)
    for _ in range(20):
        next(loop)
    some = bench_clients.rounds_of(run, 2)
    for _ in range(5):
        some()
    assert run.progress.step == 25 and run.progress.epoch == 2


def test_an_epoch_is_drawn_once_and_those_asleep_keep_none_of_it(monkeypatch):
    """Turns of one batch: each would draw its whole epoch anew."""
    drawn, order = [], Client.order
    monkeypatch.setattr(Client, "order", lambda self, epoch: drawn.append((self.number, epoch)) or order(self, epoch))
    start(plan(clients=2, local_steps=1)).train()
    assert sorted(drawn) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    monkeypatch.setattr(pool, "AWAKE", 1)
    run = start(plan(clients=3, local_steps=1))
    run.train()
    assert [one._epoch is None for one in run.clients if not one.awake] == [True, True]
