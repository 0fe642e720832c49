"""Laws that hold for every guard. A new guard adds one line to GUARDS, or ELSEWHERE, in toys.py."""

import pickle
import struct
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from toys import ALL_GUARDS, SECRET, TASK, activations, batches, cut_of, split_and_whole, states, tiny_plan

from cutlayer.audit.check import guards as laws
from cutlayer.core.guard import GuardModule
from cutlayer.core.message import Kind
from cutlayer.core.seeds import derive
from cutlayer.core.spec import spec
from cutlayer.guards import (
    BF16,
    DCT,
    DST,
    HEVC,
    JPEG,
    PCA,
    SEAL,
    WCC,
    Bottleneck1x1,
    Chain,
    Haar,
    LightSplit,
    Quantize,
    RandTopK,
    Shredder,
    TopK,
)  # fmt: skip
from cutlayer.training.build import build_server
from cutlayer.training.laws import Skipped, its_text_is_itself
from cutlayer.training.step import learn

all_guards = pytest.mark.parametrize("guard", ALL_GUARDS, ids=repr)


# Those of `cutlayer check`. What is not here is tried on more than its toys: split = unsplit and bytes = frames in
# test_split_equals_whole.py, claims in test_claims.py, secrets below.
LAWS = (
    its_text_is_itself,
    laws.promises,
    laws.lifts,
    laws.public_half,
    laws.by_seeds,
    laws.draws_anew,
    laws.reads_z_alone,
    laws.acts_in_service,
    laws.says_what_may_be_claimed,
    laws.hands_on,
    laws.refuses_in_words,
    laws.names_what_may_be_tried,
)


@pytest.mark.one_in(3)
@all_guards
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_keeps_the_laws_that_outsiders_are_held_to(guard, law):
    with suppress(Skipped):
        law(guard)


@all_guards
def test_its_kind_is_known_and_it_says_the_same_again_in_service(guard):
    assert spec(repr(guard), "guards") == guard
    z, batch = activations(guard), batches(1)[0]
    module = guard.build(cut_of(guard), public=1, private=2, task=TASK).eval()
    with torch.no_grad():
        one, other = (module(z, batch) for _ in range(2))
    assert torch.equal(one.seen, other.seen)


@all_guards
def test_what_it_notes_is_of_the_last_batch_alone(guard):
    """What one stage of learning had to say must not be said of every step after it."""
    module = guard.build(cut_of(guard), public=1, private=2, task=TASK)
    for part in module.modules():
        if isinstance(part, GuardModule):
            part.notes = {"of another batch": 1.0}
    module(activations(guard), batches(1)[0])
    assert "of another batch" not in module.notes


@all_guards
def test_nothing_of_the_client_is_in_what_the_server_gets(guard):
    """U-shaped: messages hold what the guard let through and du; server state holds neither data nor secrets."""
    plan = tiny_plan(guard=guard)
    client, server, *_ = split_and_whole(plan)
    heard = []
    send = client.remote._send
    client.remote._send = lambda message: (heard.append(message), send(message))[1]
    fed = batches(3)
    for batch in fed:
        learn(client, batch)
    assert [message.kind for message in heard] == [Kind.FORWARD, Kind.BACKWARD] * 3
    assert {name for message in heard for name in message.tensors} == {"z", "du"}
    kept = pickle.dumps([server.body.state_dict(), server.optimizer.state_dict(), plan.public(), server.seed, heard])
    for batch in fed:
        assert batch.x.numpy().tobytes() not in kept
        assert batch.y.numpy().tobytes() not in kept
    for secret in (SECRET, derive(SECRET, "client", 0), derive(SECRET, "start", 0)):
        assert secret.to_bytes(8, "little") not in kept
        assert str(secret).encode() not in kept
    assert b"WCC" not in kept
    assert struct.pack(">d", 0.17) not in kept, "0.17 is the weight of WCC; pickle writes floats big endian"


@all_guards
def test_the_servers_start_does_not_depend_on_any_secret(guard):
    one, other = (build_server(tiny_plan(guard=guard, private_seed=secret), TASK) for secret in (1, 2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.body.state_dict().values(), other.body.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("inner", [None, LightSplit(ratio=4)], ids=repr)
def test_wcc_is_invisible_at_the_first_step(inner):
    """At equal z̃ the server receives and learns the same, bit for bit, whatever the weight."""
    seen = []
    for weight in (0.0, 0.5):
        wcc = WCC(weight=weight)
        client, server, *_ = split_and_whole(tiny_plan(guard=Chain(inner, wcc) if inner else wcc))
        heard, send = [], client.remote._send
        client.remote._send = lambda message, heard=heard, send=send: (heard.append(message), send(message))[1]
        learn(client, batches(1)[0])
        seen.append((heard, states(client, server)))
    (without, quiet), (with_it, loud) = seen
    for a, b in zip(without, with_it, strict=True):
        assert a.tensors.keys() == b.tensors.keys()
        assert all(torch.equal(a[name], b[name]) for name in a.tensors)
    assert all(torch.equal(quiet[name], loud[name]) for name in quiet if name.startswith("server."))
    assert not all(torch.equal(quiet[name], loud[name]) for name in quiet if name.startswith("client.")), (
        "WCC acts at home"
    )


# What these do to a sample may hang on it alone too, in some settings. They do not say so: nobody has shown it for
# all of them, and the ledger of DP-SGD may build on what was shown only.
NOT_SHOWN = {BF16, DCT, DST, HEVC, JPEG, PCA, Bottleneck1x1, Haar, Quantize, RandTopK, SEAL, Shredder, TopK}


@all_guards
def test_it_says_whether_it_treats_every_sample_alone(guard, monkeypatch):
    """DP-SGD's bound holds beside guards that do. One that says nothing would be left out of the ledger silently."""
    # Fresh noise for each content: its numbers move with other samples, but tell nothing of them.
    monkeypatch.setattr("cutlayer.guards.noise.draw", lambda kind, hidden, *names: torch.ones_like(hidden))
    alone = _treats_every_sample_alone(guard, cut_of(guard))
    if guard.acts_alone or not any(type(part) in NOT_SHOWN for part in guard.stages()):
        assert guard.acts_alone == alone
    assert guard.acts_alone == all(part.acts_alone for part in guard.stages())


def _treats_every_sample_alone(guard, shape):
    """All samples but the first are others: neither its row nor its gradient, nor any part of the loss, may move."""
    batch, found = batches(1)[0], []
    for others in (1, 2):
        torch.manual_seed(others)
        z = torch.rand(len(batch), *shape)
        z[0] = torch.linspace(0, 1, z[0].numel()).reshape(shape)
        x = torch.cat([batch.x[:1], torch.rand_like(batch.x[1:])])
        z.requires_grad_()
        torch.manual_seed(0)
        seen, penalty, rows, _ = guard.build(shape, public=1, private=2, task=TASK).train()(z, replace(batch, x=x))
        if penalty or rows is not None or len(seen) != len(z):
            return False
        seen[0].square().sum().backward()
        found.append((seen[0].detach(), z.grad))
    (one, own), (other, theirs) = found
    return torch.equal(one, other) and torch.equal(own[0], theirs[0]) and not (own[1:].any() or theirs[1:].any())
