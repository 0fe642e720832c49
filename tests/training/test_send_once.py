"""SendOnce: what travels in each phase, what the server keeps, and that a run broken off goes on the same."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from toys import TASK, batches, tiny_parts, tiny_plan

from cutlayer.core.errors import ProtocolError
from cutlayer.core.message import Kind, Message
from cutlayer.core.state import named
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import WCC, Chain, Gate, Gaussian, KAnonymous, NoGuard
from cutlayer.training import AllActive, SendOnce
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.privacy import lines, privacy
from cutlayer.training.plan.lr_schedules import Cosine, OneCycle
from cutlayer.training.plan.roles import Phase
from cutlayer.training.plan.schedule import SplitFed, Wave
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.send_once import AGAIN, send
from cutlayer.training.step import feed, learn
from cutlayer.wire import frames

GATE = Gate(numbers=6, bits=1, hidden=8, home=1.0)
ROLES = SendOnce(home=1, split=1, views=2)
PLAN = tiny_plan(guard=GATE, roles=ROLES, epochs=7, clients=2, batch_size=8, val_share=0.1)
PROTOCOLS = [UShaped(), Vanilla()]


def run_of(plan=PLAN, heard=None):
    """A run; what its server hears goes to `heard`, with the epoch it was heard in."""

    def listen(message, handle):
        heard.append((run.progress.epoch, message))
        return handle(message)

    run = LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=[] if heard is None else [listen])
    return run


@pytest.fixture(scope="module", params=PROTOCOLS, ids=repr)
def told(request):
    """(run, what the server heard with the epoch it was in) of a whole training."""
    heard = []
    run = run_of(replace(PLAN, protocol=request.param), heard)
    heads = [named(run.networks[0].split)]
    run.train(on_epoch=lambda: heads.append(named(run.networks[0].split)))
    return run, [(epoch, one) for epoch, one in heard if one.kind is not Kind.PREDICT], heads


def test_each_phase_sends_what_it_says_and_no_more(told):
    run, heard, _ = told
    shaped = run.plan.protocol.labels_stay_home
    opening = Kind.FORWARD if shaped else Kind.LOSS
    for epoch in range(PLAN.epochs):
        phase = ROLES.phase(epoch)
        messages = [one for when, one in heard if when == epoch]
        if phase is Phase.HOME:
            assert not messages
            continue
        answers = [one for one in messages if one.kind is Kind.BACKWARD]
        opened = [one for one in messages if one.kind is opening]
        assert len(opened) == 6  # 2 clients, 24 samples each, 8 at a time
        assert len(answers) == (6 if shaped or phase is Phase.SPLIT else 0)
        names = {name for one in opened for name in one.tensors}
        if phase is Phase.AGAIN:
            assert names == {AGAIN}
        else:
            assert names == ({"z"} if shaped else {"z", "y"})


@pytest.mark.parametrize(("step", "alone"), [(send, True), (feed, False)])
def test_a_message_that_is_sent_once_hangs_on_its_sample_alone(step, alone):
    """The same sample in two batches, in codes fine enough to show statistics of either: those of `feed` do."""
    plan = tiny_plan(guard=Gate(numbers=6, bits=8, hidden=8))
    server, heard = build_server(plan.public(), TASK), []
    client = build_client(plan, TASK, 0, lambda message: (heard.append(message), server.handle(message))[1])
    one, other = batches(2, 8)
    learn(client, one)
    server.open_round({0})
    for batch in (one, replace(other, x=torch.cat([one.x[:1], 5 * other.x[1:]]))):
        step(client, batch)
    first, second = (message["z"][0] for message in heard[2:] if message.kind is Kind.FORWARD)
    assert first.equal(second) == alone and client.split.head.training


def test_clients_stand_still_once_they_are_frozen_and_learn_before(told):
    _, _, heads = told
    for before, after in pairwise(heads[:3]):  # at home, and in the split
        moved = [name for name, t in before.items() if name.startswith("net.") and not torch.equal(t, after[name])]
        assert {name.split(".")[1] for name in moved} >= {"head", "guard"}
    for later in heads[4:]:
        assert all(torch.equal(t, heads[3][name]) for name, t in later.items())


def test_weights_are_handed_out_once_more_when_clients_freeze(told):
    """Two epochs of six turns with weights, one more for each client, and turns without them from then on."""
    messages = told[0].ledger.messages
    assert messages["WEIGHTS", "down"] == 2 * 6 + 2 and messages["TURN", "down"] == 5 * 6 - 2


def test_the_server_learns_on_from_what_it_kept(told):
    run, _, _ = told
    rows = {row["epoch"]: row for row in run.progress.history}
    assert set(rows[1]) >= {"Gate at home"} and "task" not in rows[1]
    assert rows[7]["task"] < rows[3]["task"]


def test_bytes_of_repeated_epochs_are_those_of_a_reference(told):
    _, heard, _ = told
    again = [frames.size(one) for _, one in heard if AGAIN in one.tensors]
    assert again and max(again) <= 80


MERGED = [Wave(), *(pytest.param(SplitFed(version=one), marks=pytest.mark.campaign) for one in (1, 2))]


@pytest.mark.parametrize("rounds", MERGED, ids=repr)
def test_it_works_in_merged_rounds(rounds):
    run = run_of(replace(PLAN, rounds=rounds, local_steps=1))
    run.train()
    assert run.progress.epoch == PLAN.epochs and not run.coordinator.rejected


@pytest.fixture(scope="module")
def whole():
    run = run_of()
    run.train()
    return run


@pytest.mark.parametrize("stop", [4, 15, 33])
def test_a_run_broken_off_goes_on_the_same(stop, whole):
    """Of 6 rounds an epoch: at home, amid a view that is being sent, and with rows from the store."""
    rounds = []
    first = run_of()
    first.train(on_round=lambda: rounds.append(0), stop=lambda: len(rounds) >= stop)
    again = run_of()
    again.restore(*first.snapshot())
    assert again.train()
    one, other = whole.tensors(), again.tensors()
    assert one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())
    assert whole.ledger.as_dict() == again.ledger.as_dict()


def test_rates_run_down_in_each_stretch_by_itself():
    plan = replace(PLAN, schedule=Cosine(), roles=SendOnce(home=2, split=3), epochs=10)
    factors = [plan.rate_factor(epoch) for epoch in range(10)]
    assert [epoch for epoch in range(10) if factors[epoch] == 1] == [0, 2, 5]
    assert all(a > b for start, end in ((0, 2), (2, 5), (5, 10)) for a, b in pairwise(factors[start:end]))


# ------------------------------------------------------------------ what does not fit
def test_a_reference_to_what_was_never_sent_is_refused():
    run = run_of(replace(PLAN, epochs=5))
    run.train()
    kept = run.coordinator.kept
    for wrong, words in [
        ([4, 0, 99], "24 have come"),
        ([3, 0, 24], "of epoch 4"),
        ([4, 9, 24], "batch 9 of 3"),
        ([4, 0], "three whole numbers"),
    ]:
        message = Message(Kind.FORWARD, 0, 99, {AGAIN: torch.tensor(wrong)})
        with pytest.raises(ProtocolError, match=words):
            kept(message, lambda m: m)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roles": SendOnce(split=7)}, "more epochs"),
        ({"guard": Gate(numbers=6)}, "nothing to learn from at home"),
        ({"protocol": Bypass()}, "take UShaped or Vanilla"),
        ({"guard": KAnonymous(k=2), "roles": SendOnce(split=1)}, "mixes the samples"),
        ({"clients_per_round": 1}, "no draws"),
        ({"patience": 2}, "patience=0"),
    ],
    ids=str,
)
def test_plans_that_cannot_send_once_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("wrong", "words"), [({"split": 0}, "never trained"), ({"views": 0}, "from 1 up"), ({"home": -1}, "from 0 up")]
)
def test_numbers_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        SendOnce(**wrong)


def test_of_a_training_only_so_many_messages_are_new():
    assert SendOnce(home=9, split=2, views=3).messages == 5


def test_one_cycle_rises_and_falls_once():
    factors = [OneCycle(warm=0.3).factor(epoch, 20) for epoch in range(20)]
    top = factors.index(max(factors))
    assert all(a < b for a, b in pairwise(factors[: top + 1])) and all(a > b for a, b in pairwise(factors[top:]))
    assert top == 6 and 0 < factors[-1] < 0.02 and 0.1 < factors[0] < 0.3
    with pytest.raises(ValueError, match="in which the rate rises"):
        OneCycle(warm=0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, (6, 3, 18)),
        ({"roles": AllActive()}, (6, 7, 42)),
        ({"guard": Chain(GATE, WCC(weight=0.1))}, (6, 3, 18)),
        ({"guard": Chain(GATE, Gaussian(scale=1.0))}, None),
        ({"guard": NoGuard(), "roles": SendOnce()}, None),
    ],
    ids=str,
)
def test_the_ledger_counts_the_bits_of_all_messages_that_are_new(changes, told):
    found = privacy(replace(PLAN, **changes), TASK)
    assert (found["bits"] and tuple(found["bits"].values())) == told
    said = [line for line in lines(found) if "bits of a sample: " in line]
    assert said == (
        [] if told is None else [f"messages tell at most {told[2]} bits of a sample: {told[1]} messages of 6 bits"]
    )
