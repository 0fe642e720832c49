"""C3: binding is circular convolution, unbinding correlation, and everybody gets the answer of their own sample."""

import numpy as np
import pytest
import torch
from toys import SECRET, TASK, batches, tiny_parts, tiny_plan

from cutlayer.audit.victim import Victim
from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import C3, Chain, KAnonymous, LightSplit, Quantize, Subset, TopK
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.sides import sides
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn, predict

Z = torch.randn(7, 2, 3, 5, generator=generator(1), dtype=torch.float64)


def sent(guard, z=Z):
    module = guard.build(tuple(z.shape[1:]), public=4, private=5)
    return module(z, Batch(z, torch.zeros(len(z)))), module


def circular(one, other):
    """(a ⊛ b)_n = sum_m a_m b_(n - m), from its definition."""
    n = len(one)
    return np.array([sum(one[m] * other[(i - m) % n] for m in range(n)) for i in range(n)])


def correlated(seen, key):
    n = len(seen)
    return np.array([sum(key[m] * seen[(i + m) % n] for m in range(n)) for i in range(n)])


@pytest.mark.usefixtures("double")
def test_rows_are_sums_of_convolutions_and_come_apart_by_correlation():
    guarded, module = sent(C3(ratio=3))
    keys = module.unbind.keys.numpy()
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1)
    flat = np.concatenate([Z.flatten(1).numpy(), np.zeros((2, 30))])  # the last group is filled up
    expected = np.stack([sum(circular(flat[3 * g + j], keys[j]) for j in range(3)) for g in range(3)])
    np.testing.assert_allclose(guarded.seen.flatten(1), expected, atol=1e-12)
    lifted = C3(ratio=3).lift((2, 3, 5), public=4)(guarded.seen)
    assert lifted.shape == (9, 2, 3, 5) and guarded.rows.tolist() == [0, 0, 0, 1, 1, 1, 2]
    apart = np.stack([correlated(expected[g], keys[j]) for g in range(3) for j in range(3)])
    np.testing.assert_allclose(lifted.flatten(1), apart, atol=1e-12)


def test_more_samples_in_a_row_are_more_noise_and_it_is_told():
    z = torch.randn(32, 2048, generator=generator(2))
    errors = []
    for ratio in (2, 4, 8):
        guarded, module = sent(C3(ratio=ratio), z)
        assert len(guarded.seen) == 32 // ratio
        found = module.unbind(guarded.seen)
        errors.append(float((found - z).square().sum() / z.square().sum()))
        assert module.notes["crosstalk"] == pytest.approx(errors[-1], rel=1e-4)
        # Each of the others adds as much as there was; so does what a key's own spectrum is not flat.
        assert errors[-1] == pytest.approx(ratio, rel=0.15)
        near = torch.nn.functional.cosine_similarity(found, z).mean()
        assert float(near) == pytest.approx((1 + ratio) ** -0.5, rel=0.1)


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
@pytest.mark.parametrize("count", [6, 5, 3])
def test_everyone_gets_their_own_answer(protocol, count):
    """Permuting samples within what is sent permutes answers: no sample gets a neighbour's."""
    plan = tiny_plan(protocol=protocol, guard=C3(ratio=2), batch_size=6)
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    batch = batches(1)[0]
    some = Batch(batch.x[:count], batch.y[:count], seed=0)
    logits = predict(client, [some])
    assert logits.shape == (count, 3)
    # By hand: the body on what unbinding gives, row by row.
    with torch.no_grad():
        z, home = client.split.share(client.split.head(some.x))
        u = server.body(client.split.guard(z, some).seen)[:count]
        by_hand = client.split.tail(client.split.rejoin(u, home) if protocol == Bypass() else u)
    torch.testing.assert_close(logits, by_hand)
    heard = []
    client.remote._send = lambda message: (heard.append(message), server.handle(message))[1]
    learn(client, some)
    assert len(heard[0]["z"]) == -(-count // 2)
    if protocol == Vanilla():
        assert len(heard[0]["y"]) == count and ("rows" in heard[0].tensors) == bool(count % 2)


def test_gradients_are_those_of_the_whole_and_bytes_go_down_both_ways():
    found = {}
    for guard in (C3(ratio=4), Subset(ratio=1)):
        run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=8), tiny_parts(), classes=3)
        run.train()
        found[guard] = run.ledger
    small, plain = found.values()
    for kind, way in (("FORWARD", "up"), ("BACKWARD", "down")):
        assert small.bytes[kind, way] < 0.45 * plain.bytes[kind, way]


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_the_validator_knows_how_many_rows_belong_to_a_message(protocol):
    plan = tiny_plan(protocol=protocol, guard=C3(ratio=2), batch_size=6)
    validator = MessageValidator(plan, TASK)

    def begin():
        validator.open(Message(Kind.TURN, 0, 0, {"turn": torch.tensor([0, 0, 1, 0])}))

    begin()
    z = torch.zeros(3, 4, 5, 5)
    if protocol == Vanilla():
        asks = [
            ({"y": torch.zeros(6, dtype=torch.int64)}, True),
            ({"y": torch.zeros(5, dtype=torch.int64), "rows": torch.arange(5)}, True),
            ({"y": torch.zeros(3, dtype=torch.int64)}, False),
            ({"y": torch.zeros(1, dtype=torch.int64), "rows": torch.tensor([6])}, False),
        ]
        for more, right in asks:
            begin()
            message = Message(Kind.LOSS, 0, 0, {"z": z, **more})
            if right:
                validator.check(message, 0)
            else:
                with pytest.raises(Refused):
                    validator.check(message, 0)
        return
    message = Message(Kind.FORWARD, 0, 0, {"z": z})
    validator.check(message, 0)
    validator.passed(message)
    with pytest.raises(Refused, match=r"\(6, 7\) was expected"):
        validator.check(Message(Kind.BACKWARD, 0, 0, {"du": torch.zeros(3, 7)}), 0)
    validator.check(Message(Kind.BACKWARD, 0, 0, {"du": torch.zeros(6, 7)}), 0)


def test_an_attacker_reads_what_the_public_keys_take_apart():
    """Not the sums: whoever has the plan has the keys, so an audit on sums would flatter the guard."""
    plan = tiny_plan(guard=Chain(C3(ratio=2), Quantize(bits=8)), epochs=1, batch_size=8)
    run = LocalRun(plan, tiny_parts(), classes=3)
    run.train()
    victim = Victim(run, 15)
    assert victim.seen.shape == (15, 4, 5, 5)
    with torch.no_grad():
        z = run.networks[0].split.train().head(victim.truth)
    near = torch.nn.functional.cosine_similarity(victim.seen.flatten(1), z.flatten(1)).mean()
    mixed = torch.nn.functional.cosine_similarity(victim.seen.flatten(1).roll(1, 0), z.flatten(1)).mean()
    assert float(near) > 0.4 and len({tuple(row.flatten().tolist()) for row in victim.seen}) == 15
    assert float(near) > float(mixed)


def test_costs_are_those_of_one_sample():
    plain, bound = (sides(tiny_plan(guard=guard), TASK)["server"]["macs"] for guard in (Subset(ratio=1), C3(ratio=4)))
    assert bound == plain


def test_keys_are_public_and_do_not_travel():
    guard = C3(ratio=2)
    one, other = (guard.build((4, 5, 5), 1, private) for private in (SECRET, 2))
    assert torch.equal(one.unbind.keys, other.unbind.keys) and not one.state_dict()
    assert not guard.lift((4, 5, 5), 1).state_dict()
    assert not torch.equal(one.unbind.keys, guard.build((4, 5, 5), 2, SECRET).unbind.keys)


@pytest.mark.parametrize(("made", "words"), [
    (lambda: C3(ratio=1), "share a row"),
    (lambda: C3(ratio=2.5), "share a row"),
    (lambda: Chain(C3(), KAnonymous(k=2)), "both mix the samples"),
    (lambda: Chain(TopK(share=0.1), C3()), "drops coordinates"),
    (lambda: Chain(C3(), LightSplit(ratio=2)).out_shape((4, 5, 5)), "stand for several samples: put it first"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(made, words):
    with pytest.raises(ValueError, match=words):
        made()
    assert Chain(LightSplit(ratio=2), C3(ratio=3), Quantize(bits=8)).fan_out == 3
