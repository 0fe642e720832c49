"""The local engine: turns, hand-over, bytes, resuming, early stopping, and stopping when numbers are lost."""

from dataclasses import replace

import pytest
import torch
from toys import GUARDS, TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.errors import NonFinite
from cutlayer.core.message import Kind
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.local import carrier
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, LightSplit
from cutlayer.training.plan.lr_schedules import Cosine
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.protocols import Bypass, Vanilla
from cutlayer.wire import frames


def start(plan, parts=None, **options):
    return LocalRun(plan, parts or tiny_parts(), classes=TASK.classes, **options)


def finished(plan, **options):
    run = start(plan, **options)
    assert run.train()
    return run


def equal(one, other):
    a, b = one.tensors(), other.tensors()
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def through_bytes(handle):
    """The same corridor with every message encoded and decoded on its way, both directions."""
    return lambda message: frames.decode(frames.encode(handle(frames.decode(frames.encode(message)))))


PLANS = {
    "one client": tiny_plan(epochs=2, batch_size=8),
    "relay, a batch a turn": tiny_plan(epochs=2, batch_size=8, clients=3, guard=GUARDS[-1]),
    "relay, two batches, Adam": tiny_plan(epochs=2, batch_size=4, clients=3, local_steps=2, client_optimizer=Adam()),
    "own heads, an epoch a turn": tiny_plan(
        epochs=4, batch_size=8, clients=3, shared_client_network=False, local_steps=0
    ),
    "vanilla, skewed": tiny_plan(
        epochs=2, batch_size=8, clients=3, protocol=Vanilla(), partition=Dirichlet(alpha=1.0)
    ),
    "bypass, dropout, cosine": tiny_plan(
        epochs=3, batch_size=8, protocol=Bypass(), net=TinyNet(dropout=0.5), schedule=Cosine()
    ),
    "early stopping": tiny_plan(epochs=6, batch_size=8, patience=2, val_share=0.2),
}
all_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


@all_plans
def test_a_run_is_a_function_of_its_plan_and_learns(plan):
    one, other = finished(plan), finished(plan)
    assert equal(one, other)
    losses = [row["task"] for row in one.progress.history]
    assert min(losses[1:]) < losses[0]


@all_plans
def test_bytes_on_the_way_change_nothing(plan):
    assert equal(finished(plan), finished(plan, wrap=through_bytes))


@all_plans
@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupted_run_goes_on_to_the_same_numbers(plan, after):
    whole, first = finished(plan), start(plan)
    asked = iter([False] * after + [True])
    assert not first.train(stop=lambda: next(asked))
    tensors, facts = first.snapshot()
    second = start(plan)
    second.restore(tensors, facts)
    assert second.train()
    assert equal(whole, second)
    assert [{**row, "seconds": 0} for row in second.progress.history] == [
        {**row, "seconds": 0} for row in whole.progress.history
    ]
    assert second.ledger.as_dict() == whole.ledger.as_dict()


def test_the_ledger_counts_the_bytes_of_the_frames():
    counted = {"up": 0, "down": 0}

    def count(handle):
        def answer(message):
            reply = handle(message)
            counted["up"] += len(frames.encode(message))
            counted["down"] += len(frames.encode(reply))
            return reply

        return answer

    run = finished(tiny_plan(epochs=2, batch_size=8), wrap=count)
    rows = [row for row in run.ledger.as_dict()["rows"] if row["kind"] != Kind.TURN.name]  # orders are not asked
    assert {way: sum(row["bytes"] for row in rows if row["direction"] == way) for way in counted} == counted
    trained = sum(row["bytes"] for row in rows if row["kind"] in ("FORWARD", "BACKWARD") and row["direction"] == "up")
    assert run.ledger.per_sample("up") == trained / (2 * 48)


def test_a_guard_makes_both_directions_smaller():
    plain, guarded = finished(tiny_plan(epochs=1)), finished(tiny_plan(epochs=1, guard=LightSplit(ratio=4)))
    for way in ("up", "down"):
        assert guarded.ledger.per_sample(way) < 0.5 * plain.ledger.per_sample(way)


def test_a_relay_shows_its_weights_and_own_heads_do_not():
    relay, own = finished(PLANS["relay, a batch a turn"]), finished(PLANS["own heads, an epoch a turn"])
    assert relay.ledger.messages[Kind.WEIGHTS.name, "up"] == relay.progress.step
    assert own.ledger.messages[Kind.WEIGHTS.name, "up"] == 0
    assert len(relay.evaluate(relay.parts.test)) == 1
    assert len(set(own.evaluate(own.parts.val))) >= 1 and len(own.evaluate(own.parts.test)) == 3


def test_a_relay_with_one_batch_turns_equals_one_client_with_the_same_batches():
    """Hand-over keeps everything: three clients in turn train the head exactly as one client would."""
    relay = start(tiny_plan(epochs=1, batch_size=8, clients=3, client_optimizer=SGD(lr=0.05, momentum=0.9)))
    single = start(tiny_plan(epochs=1, batch_size=8, client_optimizer=SGD(lr=0.05, momentum=0.9)))
    from cutlayer.core.state import named
    from cutlayer.training.step import learn

    fed = []
    for client in relay.clients:
        client.batch = lambda index, make=client.batch: (fed.append(make(index)), fed[-1])[1]
    relay.train()
    for batch in fed:
        learn(single.networks[0], batch)
    ours = relay.coordinator.shared
    theirs = named(single.networks[0].split)
    assert all(torch.equal(ours[name], t) for name, t in theirs.items())


def test_passive_watchers_at_the_server_leave_training_bit_identical():
    heard = []

    def listen(message, handle):
        heard.append(message)
        return handle(message)

    plan = PLANS["one client"]
    assert equal(finished(plan), finished(plan, at_server=[listen]))
    assert len(heard) > 10


def test_early_stopping_goes_back_to_the_best_epoch():
    plan = replace(PLANS["early stopping"], epochs=50, server_optimizer=SGD(lr=1e-9), client_optimizer=SGD(lr=1e-9))
    run = finished(plan)
    assert run.progress.epoch - run.progress.best.epoch == 2 < 50
    run.use_best()
    assert run.evaluate(run.parts.val)[0] == pytest.approx(run.progress.best.accuracy)


def test_lost_numbers_stop_the_run_with_step_and_term():
    plan = tiny_plan(epochs=30, batch_size=8, guard=WCC(weight=0.1), client_optimizer=SGD(lr=100.0))
    with pytest.raises(
        NonFinite, match=r"non-finite .*step \d+.*WCC did it.*Lower the learning rate or the weight of WCC"
    ):
        finished(plan)


def test_the_largest_term_before_the_loss_of_numbers_is_named():
    run = start(tiny_plan(guard=WCC(weight=1.0)))
    run.networks[0].peaks = {"task": 1.2, "WCC": 3e30}
    with torch.no_grad():
        run.networks[0].split.head[0].weight.fill_(float("nan"))
    with pytest.raises(
        NonFinite,
        match=r"step 0 of client 0 \(task is nan, WCC is nan\); WCC did it.*task 1.2, WCC 3e.30.*the weight of WCC",
    ):
        run.train()


def test_default_optimizers_keep_their_numbers_with_wcc():
    finished(tiny_plan(epochs=3, guard=WCC(weight=0.1), client_optimizer=Adam(), server_optimizer=Adam()))


def test_what_is_held_out_is_brought_to_the_device_once(monkeypatch):
    moved = []
    monkeypatch.setattr(carrier, "on", lambda samples, device: (moved.append(samples), samples)[1])
    run = LocalRun(tiny_plan(epochs=3, batch_size=12), tiny_parts(), classes=TASK.classes)
    assert run.train()
    run.evaluate(run.parts.test)
    run.evaluate(run.parts.test)
    assert [id(one) for one in moved] == [id(run.parts.val), id(run.parts.test)]
