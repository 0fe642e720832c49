"""EntropicStudent: two stages, who learns what in each, and the decoder that changes hands."""

from math import prod

import pytest
import torch
from torch.nn.functional import mse_loss
from toys import TASK, batches, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind
from cutlayer.core.seeds import generator
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, Chain, EntropicStudent
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import export, learn, load
from cutlayer.wire.codecs.latents import Latents

CUT = (4, 5, 5)
Z = torch.randn(6, *CUT, generator=generator(3)).relu() * 3
STEP = Batch(Z, torch.zeros(6).long(), seed=1)
SMALL = EntropicStudent(channels=3, stage=5, freq=2, width=8)


def pair(guard=SMALL, **changes):
    plan = tiny_plan(guard=guard, **{"frozen_parts": ("head",), **changes})
    server = build_server(plan.public(), TASK)
    heard = []

    def send(message):
        heard.append(message.kind)
        return server.handle(message)

    return build_client(plan, TASK, 0, send), server, heard


def copied(module):
    return {name: t.clone() for name, t in module.state_dict().items()}


def equal(one, other):
    return all(torch.equal(t, other[name]) for name, t in one.items())


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_stages_and_exchanges_come_when_they_are_due(protocol):
    client, _, heard = pair(protocol=protocol)
    guard = client.split.guard
    for number, batch in enumerate(batches(9)):
        before = copied(guard.encoder), copied(guard.decoder)
        learn(client, batch)
        moved = [not equal(was, copied(now)) for was, now in zip(before, (guard.encoder, guard.decoder), strict=True)]
        assert moved == [number < 5] * 2, "encoder and decoder learn in the first stage, and never again"
    at = [sum(kind != Kind.LIFT for kind in heard[:n]) // 2 for n, kind in enumerate(heard) if kind is Kind.LIFT]
    assert at == [2, 4, 5], "after every two steps, and at the end of the stage"


def test_the_server_goes_on_from_the_clients_decoder():
    client, server, _ = pair()
    fed = batches(8)
    for batch in fed[:5]:
        learn(client, batch)
    ours = copied(client.split.guard.decoder)
    server.bodies.optimizer = None
    learn(client, fed[5])
    assert equal(ours, copied(server.body.lift)), "handed over at the end of the stage"
    client, server, _ = pair()
    for batch in fed:
        learn(client, batch)
    assert not equal(copied(client.split.guard.decoder), copied(server.body.lift)), "it learns the task from then on"


def test_no_gradient_of_the_task_reaches_the_encoder_or_the_head():
    """What encoder, entropy model and decoder learn is imitation and rate: the rest of the loss changes nothing."""
    module = SMALL.build(CUT, 1, 2)
    z = Z.clone().requires_grad_()
    guarded = module(z, STEP)
    assert not guarded.seen.requires_grad and set(guarded.penalty) == {"imitation", "rate"}
    sum(guarded.penalty.values()).backward()
    assert z.grad is None, "the head is the teacher"
    assert all(parameter.grad is not None for name, parameter in module.named_parameters() if "own" not in name)
    expected = mse_loss(module.decoder(guarded.seen), Z)
    torch.testing.assert_close(guarded.penalty["imitation"], expected)
    bits = module.notes["bits a sample"]
    assert float(guarded.penalty["rate"].detach()) == pytest.approx(SMALL.beta * bits / prod(CUT))


def test_in_the_second_stage_there_is_no_penalty_and_momentum_moves_nothing():
    client, *_ = pair(client_optimizer=Adam(lr=0.01, weight_decay=0.1))
    fed = batches(8)
    for batch in fed[:5]:
        assert set(learn(client, batch)) == {"task", "imitation", "rate", "bits a sample"}
    before = copied(client.split.guard.encoder)
    for batch in fed[5:]:
        learn(client, batch)
    assert equal(before, copied(client.split.guard.encoder))


def test_imitation_gets_better_and_beta_costs_some_of_it():
    found = {}
    for beta in (0.0, 20.0):
        client, *_ = pair(
            EntropicStudent(channels=3, stage=99, freq=99, width=8, beta=beta), client_optimizer=Adam(lr=0.01)
        )
        terms = [learn(client, batch) for batch in batches(60)]
        first, last = (sum(t["imitation"] for t in some) / 5 for some in (terms[:5], terms[-5:]))
        found[beta] = (last / first, terms[-1]["bits a sample"])
    assert found[0.0][0] < 0.7
    assert found[20.0][1] < found[0.0][1] / 2


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_leaves_are_coded_whole_numbers(mode):
    module = getattr(SMALL.build(CUT, 1, 2), mode)()
    seen = module(Z, STEP).seen
    assert torch.equal(seen, seen.round()) and len(seen.unique()) > 1
    assert torch.equal(
        Latents().decode(memoryview(bytes(module.packed.encode())), seen.dtype, tuple(seen.shape)), seen
    )
    assert len(module.packed.spreads.own) == 0 and module.packed.spreads.weight.size == 0  # a factorised prior


def test_prediction_counts_no_steps():
    module = SMALL.build(CUT, 1, 2)
    with torch.no_grad():
        module(Z, STEP)
        module.eval()(Z, STEP)
    assert int(module.steps) == int(module.age) == 0


def test_a_relay_hands_on_how_far_it_is():
    client, *_ = pair()
    other, _, heard = pair()
    for batch in batches(7):
        learn(client, batch)
    load(other, export(client))
    before = copied(other.split.guard.encoder)
    learn(other, batches(1)[0])
    assert equal(before, copied(other.split.guard.encoder)) and Kind.LIFT not in heard


def test_clients_in_turn_share_one_student():
    plan = tiny_plan(guard=EntropicStudent(channels=3, stage=4, freq=3, width=8), clients=2, epochs=2, batch_size=8)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    run.train()
    assert run.ledger.bytes[Kind.LIFT.name, "up"] > 0
    with pytest.raises(ValueError, match=r"share the heads, or take LFQ\(decoder='server'\)$"):
        LocalRun(tiny_plan(guard=SMALL, clients=2, shared_client_network=False), tiny_parts(), classes=3)


def test_the_server_is_told_neither_beta_nor_the_stage():
    told = EntropicStudent(channels=3, beta=0.7, stage=17, freq=3, width=8).public_part()
    assert told == EntropicStudent(channels=3, width=8)


def test_one_half_at_the_server_is_exchanged_at_most():
    with pytest.raises(ValueError, match="both exchange"):
        Chain(EntropicStudent(), LFQ())
    assert EntropicStudent.post_hoc and Chain(EntropicStudent()).exchange == "replace"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stage": 0}, "stage counts steps, a whole number from 1 up; got 0"),
        ({"freq": 1.5}, "freq counts steps"),
        ({"beta": -1}, "beta is a weight, a number from 0 up; got -1"),
        ({"stride": 5}, "EntropicStudent's stride is a whole number from 1 to 3; got 5"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        EntropicStudent(**settings)
