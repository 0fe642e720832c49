"""LFQ: bits and their bytes, the three terms of its loss, and a decoder that is copied or replaced."""

from collections import Counter
from dataclasses import replace
from math import log

import pytest
import torch
from torch import nn
from toys import TASK, batches, tiny_parts, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.errors import ProtocolError
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.core.state import unnamed
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, WCC, Bottleneck1x1, Chain, TopK
from cutlayer.guards.lfq import Levels, entropy_of_levels, entropy_term
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import export, learn
from cutlayer.wire import frames
from cutlayer.wire.codecs import BY_TAG

CUT = (4, 5, 5)
Z = torch.randn(6, *CUT, generator=generator(3)).relu()
STEP = Batch(Z, torch.zeros(6).long(), seed=1)
FORMS = [LFQ(bits=3), LFQ(groups=2, bits=3, levels="learned"), LFQ(bits=5, scale="client"), LFQ(bits=2, stride=1)]


def built(guard, shape=CUT):
    return guard.build(shape, 1, 2)


# ------------------------------------------------------------------ bits and bytes
@pytest.mark.parametrize(
    ("groups", "bits", "bpp", "ratio"), [(1, 52, 0.051, 5041), (2, 104, 0.102, 2521), (4, 208, 0.203, 1260)]
)
def test_the_rates_of_vgg16(groups, bits, bpp, ratio):
    """Thesis, Table 2.2: 13 bits a group at 2x2 of the 512x4x4, over the 1024 pixels of an image."""
    guard, shape = LFQ(groups=groups, bits=13), (512, 4, 4)
    assert guard.out_shape(shape) == (13 * groups, 2, 2)
    assert guard.bits_of_a_sample(shape) == bits
    assert bits / 1024 == pytest.approx(bpp, abs=6e-4)
    assert round(32 * 512 * 4 * 4 / bits) == ratio
    z = torch.rand(256, *shape, generator=generator(0))
    module = built(guard, shape).eval()
    with torch.no_grad():
        module(z, Batch(z, torch.zeros(256)))
    assert module.packed.size() == 10 + 8 + 256 * bits // 8  # 1664 bytes of codes for one group


@pytest.mark.parametrize("guard", FORMS, ids=repr)
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_what_leaves_is_two_levels_in_as_many_bytes_as_its_bits_need(guard, rows):
    module = built(guard).eval()
    with torch.no_grad():
        seen = module(Z[:rows], STEP).seen
    assert len(seen.unique()) == 2 and torch.equal(seen.abs(), seen.abs().max().expand_as(seen))
    data = module.packed.encode()
    assert len(data) == module.packed.size() == 18 + -(-rows * guard.bits_of_a_sample(CUT) // 8)
    assert torch.equal(BY_TAG[module.packed.tag].decode(data, seen.dtype, tuple(seen.shape)), seen)
    message = Message(Kind.PREDICT, 0, 0, {"z": seen}, {"z": module.packed})
    assert torch.equal(frames.decode(frames.encode(message))["z"], seen)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 5), (6, 6), (7, 4), (8, 9)])
@pytest.mark.parametrize(("depth", "stride"), [(1, 1), (1, 2), (2, 2), (3, 2), (2, 3)])
def test_maps_of_any_size_come_back_in_their_size(size, depth, stride):
    guard, shape = LFQ(bits=2, depth=depth, stride=stride), (3, *size)
    z = torch.rand(4, *shape, generator=generator(0))
    seen = built(guard, shape)(z, Batch(z, torch.zeros(4))).seen
    assert tuple(seen.shape[1:]) == guard.out_shape(shape)
    assert guard.lift(shape, 1)(seen).shape == z.shape
    expected = [-(-side // stride**depth) for side in size]  # ceil of ceil is ceil
    assert list(seen.shape[2:]) == expected


def test_numbers_that_are_none_are_not_made_into_bits():
    module, broken = built(LFQ(bits=3)).eval(), Z.clone()
    broken[0, 0, 0, 0] = float("nan")
    seen = module(broken, STEP).seen
    assert seen.isnan().all() and module.packed is None, "no floats of the samples beside it"


# ------------------------------------------------------------------------ the loss
def test_tokens_are_positions_and_features_channels():
    z = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(2))
    guard = LFQ(bits=3, freq=1000)
    as_map = z.transpose(1, 2).unsqueeze(3)
    text, maps = (guard.build(shape, 1, 2).eval() for shape in ((6, 5), (5, 6, 1)))
    one, other = (module(rows, None).seen for module, rows in ((text, z), (maps, as_map)))
    assert torch.equal(one, other) and one.shape == (4, *guard.out_shape((6, 5)))
    back = guard.lift((6, 5), 1).eval()(one)
    assert torch.equal(back, guard.lift((5, 6, 1), 1).eval()(one).squeeze(3).transpose(1, 2))


def logits_of(p):
    return torch.logit(torch.tensor(p, dtype=torch.float64)).reshape(-1, 1, 1, 1)


def test_the_entropy_term_rewards_sure_bits_and_even_use():
    even, same, unsure = (
        float(entropy_term(logits_of(p), 1.0)) for p in ([0.999, 0.001], [0.999, 0.999], [0.5, 0.5])
    )
    assert even == pytest.approx(-log(2), abs=0.01)  # each sample sure, both values used: the best there is
    assert same == pytest.approx(0, abs=0.01)  # sure, but always the same
    assert unsure == pytest.approx(0, abs=1e-6)
    assert float(entropy_term(logits_of([0.999, 0.999]), 0.0)) < float(entropy_term(logits_of([0.5, 0.5]), 0.0))


def test_the_entropy_term_against_its_formula_and_where_it_leads():
    logits = torch.randn(5, 3, 2, 2, generator=generator(1), dtype=torch.float64, requires_grad=True)
    p = logits.detach().sigmoid()

    def entropy(q):
        return -(q * q.log() + (1 - q) * (1 - q).log())

    expected = entropy(p).mean() - 0.7 * entropy(p.mean((0, 2, 3))).mean()
    assert entropy_term(logits, 0.7).item() == pytest.approx(float(expected))
    # Followed downhill from bits that are nearly all ones, both values come into use.
    free = (0.3 * torch.randn(64, 4, 1, 1, generator=generator(2)) + 1).requires_grad_()
    before = (free > 0).float().mean()
    for _ in range(300):
        free = (free - 20 * torch.autograd.grad(entropy_term(free, 1.0), free)[0]).detach().requires_grad_()
    assert before > 0.95 and abs(float((free > 0).float().mean()) - 0.5) < 0.2 and free.abs().mean() > 2
    large = torch.tensor([1e4, -1e4]).reshape(2, 1, 1, 1).requires_grad_()
    assert torch.autograd.grad(entropy_term(large, 1.0), large)[0].isfinite().all()


def latent_of(module, z):
    """The encoder a second time, on the same batch."""
    return module.encoder(z)


def test_the_terms_are_what_their_names_say():
    guard = LFQ(bits=3, beta=0.3, entropy=0.2, gamma=0.9, recon=0.6)
    module = built(guard)
    seen, penalty, _, _ = module(Z, STEP)
    latent = latent_of(module, Z)
    assert torch.equal(seen, torch.where(latent >= 0, 1.0, -1.0))
    nearest = torch.minimum((latent - 1) ** 2, (latent + 1) ** 2)
    assert set(penalty) == {"LFQ commitment", "LFQ entropy", "LFQ reconstruction"}
    torch.testing.assert_close(penalty["LFQ commitment"], 0.3 * nearest.mean())
    torch.testing.assert_close(penalty["LFQ entropy"], 0.2 * entropy_term(4 * latent, 0.9))
    error = (guard.lift(CUT, 1)(seen) - Z).square().mean()  # both sides start from one decoder
    torch.testing.assert_close(penalty["LFQ reconstruction"], 0.6 * error)
    assert module.notes.keys() == {"bits used"} and 0 <= module.notes["bits used"] <= 1
    assert set(built(replace(guard, beta=0, entropy=0))(Z, STEP).penalty) == {"LFQ reconstruction"}


@pytest.mark.parametrize("guard", FORMS, ids=repr)
def test_commitment_draws_the_encoder_to_its_levels_and_moves_few_codes(guard):
    module = built(replace(guard, entropy=0, recon=0))
    only = torch.optim.SGD(module.encoder[-1].parameters(), 1.0)
    seen, terms = module(Z, STEP).seen, []
    for _ in range(60):
        only.zero_grad()
        guarded = module(Z, STEP)
        terms.append(guarded.penalty["LFQ commitment"].item())
        guarded.penalty["LFQ commitment"].backward()
        only.step()
    assert terms[-1] < terms[0]
    assert ((module(Z, STEP).seen > 0) == (seen > 0)).float().mean() > 0.7


@pytest.mark.parametrize("guard", FORMS, ids=repr)
def test_the_gradient_of_the_levels_is_taken_for_that_of_the_encoder(guard):
    """dL/dz_e = dL/dz_q (thesis, Sec. 2.4), where z_q is what the decoder reads: levels that are far apart too."""
    module, kept = built(guard), []
    lift = guard.lift(CUT, 1)
    if guard.levels == "learned":
        with torch.no_grad():
            for decoder in (module.decoder, lift):
                decoder[0].centre.copy_(torch.tensor([0.5, -0.2, 0, 0, 0, 0.3]).reshape(-1, 1, 1))
                decoder[0].log_spread.fill_(0.7)
    module.encoder.register_forward_hook(lambda _, __, out: (out.retain_grad(), kept.append(out))[0])
    seen = module(Z, STEP).seen
    read = lift[0](seen)
    weight = torch.randn(read.shape, generator=generator(5))
    (read * weight).sum().backward()
    torch.testing.assert_close(kept[0].grad, weight)


def test_learned_levels_are_the_nearer_ones():
    module = built(LFQ(bits=2, levels="learned"))
    low, high = torch.tensor([-3.0, 0.2]), torch.tensor([-1.0, 0.6])
    with torch.no_grad():
        module.decoder[0].centre.copy_(((low + high) / 2).reshape(2, 1, 1))
        module.decoder[0].log_spread.copy_(((high - low) / 2).log().reshape(2, 1, 1))
    module.eval()
    with torch.no_grad():
        latent, read = module.encoder(Z), module.decoder[0](module(Z, STEP).seen)
    low, high = low.reshape(2, 1, 1), high.reshape(2, 1, 1)
    torch.testing.assert_close(
        read, torch.where((latent - low).abs() < (latent - high).abs(), low, high).expand_as(read)
    )


def test_levels_learn_where_the_decoder_learns():
    for where, server in (("server", True), ("client", False)):
        guard = LFQ(bits=2, levels="learned", decoder=where)
        module = built(guard)
        assert all(p.requires_grad is server for p in guard.lift(CUT, 1).parameters())
        assert all(p.requires_grad is not server for p in module.decoder.parameters())
        assert all(p.requires_grad for p in module.encoder.parameters())
        assert isinstance(guard.lift(CUT, 1)[0], Levels)


def test_a_clients_scale_is_the_size_of_what_its_encoder_gives():
    module = built(LFQ(bits=3, scale="client"))
    with torch.no_grad():
        module.encoder[-1].weight.mul_(5)
    seen = module(Z, STEP).seen
    size = latent_of(module, Z).abs().mean()
    torch.testing.assert_close(seen.abs(), size.expand_as(seen))
    for _ in range(60):
        module(Z, STEP)
    alone = module.eval()(Z[:1], STEP).seen
    torch.testing.assert_close(
        alone.abs(), size.expand_as(alone), rtol=0.02, atol=0
    )  # and of others' company no trace


# -------------------------------------------------------------------- the exchange
def pair(guard, **changes):
    plan = tiny_plan(guard=guard, **changes)
    server = build_server(plan.public(), TASK)
    heard = []

    def send(message):
        answer = server.handle(message)
        heard.append((message, answer))
        return answer

    return build_client(plan, TASK, 0, send), server, heard


def state_of(module):
    return {name: t.clone() for name, t in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def decoder_of(client):
    guard = client.split.guard
    return (guard.inner[0] if hasattr(guard, "inner") else guard).decoder


WRAPPED = [lambda guard: guard, lambda guard: Chain(guard, WCC(weight=0.001))]


@pytest.mark.parametrize("wrapped", WRAPPED, ids=["alone", "in a chain"])
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla(), Bypass()], ids=repr)
def test_the_client_copies_the_servers_decoder_when_it_is_time(protocol, wrapped):
    client, server, heard = pair(wrapped(LFQ(bits=3, freq=3, levels="learned")), protocol=protocol)
    start, copies = state_of(server.body.lift), []
    assert same(state_of(decoder_of(client)), start)
    server_side = []
    original = client.split.guard.take_lift
    client.split.guard.take_lift = lambda state: (original(state), copies.append(state_of(decoder_of(client))),
                                                  server_side.append(state_of(server.body.lift)))  # fmt: skip
    for batch in batches(8):
        learn(client, batch)
    lifts = [message for message, _ in heard if message.kind is Kind.LIFT]
    assert [message.step for message in lifts] == [3, 6] and not any(message.tensors for message in lifts)
    assert len(copies) == 2 and all(map(same, copies, server_side)) and not same(copies[0], start)
    assert not same(copies[1], copies[0])
    assert all(p.grad is None for p in decoder_of(client).parameters()), "the copy does not learn"


@pytest.mark.parametrize("wrapped", [*WRAPPED, lambda guard: Chain(Bottleneck1x1(ratio=2), guard)])
def test_the_clients_decoder_replaces_the_servers(wrapped):
    guard = wrapped(LFQ(bits=3, freq=3, decoder="client"))
    client, server, heard = pair(guard)
    parts = client.split.guard
    own = next(one for one in getattr(parts, "inner", [parts]) if hasattr(one, "decoder")).decoder
    lift = server.body.lift if isinstance(server.body.lift[0], nn.Identity) else server.body.lift[0]
    first = {name: t.clone() for name, t in lift.named_parameters()}
    trained = {id(p) for group in server.optimizer.param_groups for p in group["params"]}
    assert not any(id(p) in trained for p in lift.parameters())
    for number, batch in enumerate(batches(5)):
        if number == 3:
            assert all(torch.equal(t, first[name]) for name, t in lift.named_parameters()), "nobody trains it there"
            sent = state_of(own)
        learn(client, batch)
    lifts = [message for message, _ in heard if message.kind is Kind.LIFT]
    assert [message.step for message in lifts] == [3]
    given = {name.split("lift.")[1].removeprefix("0."): t for name, t in lifts[0].tensors.items()}
    assert len(given) == len(sent) and all(torch.equal(given[name], sent[name]) for name in given if name in sent)
    changed = {name for name, t in lift.named_parameters() if not torch.equal(t, first[name])}
    assert {name for name, _ in own.named_parameters()} == {name.removeprefix("0.") for name in changed}
    for name, t in lift.named_parameters():
        assert torch.equal(t, sent[name])


@pytest.mark.parametrize("where", ["server", "client"])
def test_every_byte_of_the_exchange_is_counted(where):
    plan = tiny_plan(guard=LFQ(bits=3, freq=4, decoder=where), epochs=2, batch_size=8, clients=2)
    counted = Counter()

    def through_bytes(handle):
        def answer(message):
            up = frames.encode(message)
            down = frames.encode(handle(frames.decode(up)))
            counted[message.kind.name, "up"] += len(up)
            counted[message.kind.name, "down"] += len(down)
            return frames.decode(down)

        return answer

    runs = [LocalRun(plan, tiny_parts(), classes=3), LocalRun(plan, tiny_parts(), classes=3, wrap=through_bytes)]
    for run in runs:
        run.train()
    ours, theirs = (run.tensors() for run in runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    found = {key: count for key, count in runs[0].ledger.bytes.items() if key[0] not in ("TURN", "WEIGHTS")}
    assert found == {key: count for key, count in counted.items() if key[0] not in ("TURN", "WEIGHTS")}
    steps = 2 * sum(runs[0].timetable.batches)
    weights = sum(t.numel() * t.element_size() for t in runs[0].server.body.lift.state_dict().values())
    # A relay hands on the count, so an exchange follows four steps, whoever takes them.
    assert runs[0].ledger.messages["LIFT", "up"] == (steps - 1) // 4
    large, small = ("down", "up") if where == "server" else ("up", "down")
    assert found["LIFT", large] >= (steps - 1) // 4 * weights > found["LIFT", small]


def test_predictions_exchange_nothing():
    client, _, heard = pair(LFQ(bits=3, freq=1))
    learn(client, batches(1)[0])
    heard.clear()
    with torch.no_grad():
        client.split.eval()(batches(1)[0], client.remote)
    assert [message.kind for message, _ in heard] == [Kind.PREDICT]


def test_a_server_takes_no_other_weights():
    _, server, _ = pair(LFQ(bits=3, decoder="client"))
    before = state_of(server.body.lift)
    for tensors in ({"lift.1.weight": torch.zeros(4, 3)}, {"lift.head": torch.zeros(1)}, {}):
        with pytest.raises(ProtocolError):
            server.handle(Message(Kind.LIFT, 0, 0, tensors))
    assert same(state_of(server.body.lift), before)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "changes", [{"micro_batches": 3}, {"protocol": Bypass()}, {"protocol": Vanilla(), "local_steps": 2}], ids=repr
)
@pytest.mark.parametrize("where", ["server", "client"])
def test_it_is_carried_on_exactly(where, changes):
    pre = 3 if where == "client" else 0
    guard = LFQ(bits=3, freq=3, decoder=where, pre=pre, scale="client", levels="learned")
    plan = tiny_plan(guard=guard, epochs=2, batch_size=8, clients=2, **changes)
    whole, first, second = (LocalRun(plan, tiny_parts(), classes=3) for _ in range(3))
    whole.train()
    assert not first.train(stop=lambda: first.progress.step >= 7)
    second.restore(*first.snapshot())
    assert second.train()
    ours, theirs = whole.tensors(), second.tensors()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert whole.ledger.bytes == second.ledger.bytes and whole.ledger.bytes["LIFT", "up"] > 0


# -------------------------------------------------------------------- pre-training
def test_pre_training_lowers_the_reconstruction_error_before_the_first_step():
    errors, sent = {}, {}
    for pre in (0, 60):
        client, _, heard = pair(LFQ(bits=8, stride=1, decoder="client", pre=pre, freq=50))
        losses = [learn(client, batch)["LFQ reconstruction"] for batch in batches(3)]
        errors[pre] = losses[0]
        sent[pre] = [message.step for message, _ in heard if message.kind is Kind.LIFT]
    assert errors[60] < 0.6 * errors[0]
    assert sent == {0: [], 60: [1]}, "the server gets the decoder that was made"
    again = pair(LFQ(bits=8, stride=1, decoder="client", pre=60, freq=50))[0]
    assert learn(again, batches(1)[0])["LFQ reconstruction"] == errors[60]


def test_pre_training_happens_once_in_a_relay():
    plan = tiny_plan(guard=LFQ(bits=3, decoder="client", pre=5), clients=2)
    one, two = (build_client(plan, TASK, number, build_server(plan.public(), TASK).handle) for number in (0, 1))
    learn(one, batches(1)[0])
    two.split.load_state_dict(unnamed(export(one)))
    assert two.split.guard.started
    before = state_of(two.split.guard.encoder)
    two.split.train()
    two.split.guard(two.split.head(batches(1)[0].x), batches(1)[0])
    assert all(torch.equal(t, before[name]) for name, t in two.split.guard.encoder.named_parameters())


# ------------------------------------------------------------------------ settings
def test_the_server_is_not_told_how_the_client_weighs_its_terms():
    guard = LFQ(groups=2, bits=3, beta=0.3, entropy=0.2, recon=0.7, freq=7, scale="client", levels="learned")
    assert repr(guard.public_part()) == "LFQ(groups=2, bits=3, levels='learned')"
    assert guard.public_part().exchange == guard.exchange == "copy"
    assert LFQ(decoder="client").public_part().exchange == "replace"
    assert guard.claim((512, 4, 4)) == "a sample leaves in 24 bits"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bits": 0}, "bits is a whole number from 1 up"),
        ({"groups": 1.5}, "groups is a whole number"),
        ({"depth": 0}, "depth is a whole number from 1"),
        ({"freq": 0}, "freq is a whole number from 1"),
        ({"pre": -1}, "pre is a whole number from 0"),
        ({"stride": 4}, "stride is 1"),
        ({"levels": "free"}, "levels is one of fixed, learned"),
        ({"scale": "row"}, "scale is one of none, client"),
        ({"decoder": "both"}, "decoder is one of server, client"),
        ({"beta": -0.1}, "beta is a weight"),
        ({"recon": float("nan")}, "recon is a weight"),
        ({"decoder": "client", "recon": 0}, "learns from the reconstruction alone"),
        ({"pre": 5}, "decoder='client'"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        LFQ(**settings)


def test_where_it_does_not_fit():
    with pytest.raises(ValueError, match="needs a cut of channels x height x width"):
        LFQ().out_shape((128,))
    with pytest.raises(ValueError, match="both exchange"):
        Chain(LFQ(), LFQ())
    with pytest.raises(ValueError, match="drops coordinates"):
        Chain(TopK(), LFQ())
    with pytest.raises(ValueError, match=r"share the heads, or take LFQ\(decoder='server'\)"):
        tiny_plan(guard=LFQ(decoder="client"), clients=2, shared_client_network=False)
    assert cut_shapes(tiny_plan(guard=LFQ(), clients=2, shared_client_network=False), TASK)
    assert cut_shapes(Plan(guard=LFQ(decoder="client")), Task((1, 28, 28), 10))


# ------------------------------------------------------------------ more levels, fewer bits, a client's affine
@pytest.mark.parametrize("values", [2, 3, 5, 16, 256])
def test_each_dimension_leaves_as_the_nearest_of_its_levels(values):
    guard = LFQ(bits=3, values=values)
    module = built(guard).eval()
    with torch.no_grad():
        seen, soft = module(Z, STEP).seen, module.encoder(Z)
    levels = torch.linspace(-1, 1, values)
    nearest = (soft.unsqueeze(-1) - levels).abs().amin(-1)
    torch.testing.assert_close((soft - seen).abs(), nearest, atol=1e-6, rtol=0)
    ready = module.packed
    assert torch.equal(BY_TAG[ready.tag].decode(ready.encode(), seen.dtype, seen.shape), seen)
    assert guard.bits_of_a_sample(CUT) == seen[0].numel() * max(1, (values - 1).bit_length())


def test_with_two_levels_the_general_entropy_is_that_of_bits():
    module = built(LFQ(bits=3))
    codes = module._codes(Z)
    levels = torch.tensor([-1.0, 1.0]).view(-1, 1, 1, 1, 1)
    general = entropy_of_levels((-(codes.soft - levels).square()).log_softmax(0), 0.7)
    torch.testing.assert_close(general, entropy_term(4 * codes.soft, 0.7))


def test_more_levels_take_more_from_the_loss_and_learn_something():
    module = built(LFQ(bits=3, values=4, decoder="client", recon=1.0)).train()
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        guarded = module(Z, STEP)
        assert set(guarded.penalty) == {"LFQ commitment", "LFQ entropy", "LFQ reconstruction"}
        losses.append(float(guarded.penalty["LFQ reconstruction"].detach()))
        optimizer.zero_grad()
        sum(guarded.penalty.values()).backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0] and 0 < float(module.notes["bits used"]) <= 1


@pytest.mark.parametrize("values", [2, 4])
def test_coded_a_batch_takes_its_entropy_and_a_little(values):
    """Eq. 2.8, with the entropy of a level over the batch and the constant that the coder's tables and words take."""
    pytest.importorskip("constriction", reason="pip install 'cutlayer[entropy]'")
    guard = LFQ(bits=8, values=values, coded=True)
    z = torch.randn(256, *CUT, generator=generator(4)).relu()
    module = built(guard).eval()
    with torch.no_grad():
        module.encoder[-1].bias += 1.2  # codes that are not equally frequent
        seen = module(z, Batch(z, torch.zeros(256))).seen
    shares = torch.stack([(seen == level).double().mean() for level in seen.unique()])
    entropy = float(-(shares * shares.log2()).sum())
    flat = 10 + 8 + seen.numel() * guard.value_bits // 8
    assert module.packed.size() <= seen.numel() * entropy / 8 * 1.01 + 40
    assert module.packed.size() < 0.9 * flat, "else this shows nothing"
    ready = module.packed
    assert torch.equal(BY_TAG[ready.tag].decode(ready.encode(), seen.dtype, seen.shape), seen)


def test_coding_never_takes_more_than_going_without():
    z = torch.randn(6, *CUT, generator=generator(4))
    sizes = []
    for guard in (LFQ(bits=3), LFQ(bits=3, coded=True)):
        module = built(guard).eval()
        with torch.no_grad():
            module(z, STEP)
        sizes.append(module.packed.size())
    assert sizes[1] <= sizes[0]


def test_an_affine_brings_the_codes_of_every_client_to_use():
    """An encoder whose codes are far off for a client's data sends a constant; moved to its own mean it does not."""
    used = {}
    for scale in ("none", "affine"):
        module = built(LFQ(bits=4, scale=scale)).train()
        with torch.no_grad():
            module.encoder[-1].bias += 9.0
        module(Z, STEP)
        used[scale] = float(module.notes["bits used"])
    assert used["none"] == 0 and used["affine"] > 0.8
    module.eval()
    with torch.no_grad():
        one, all_of_them = module(Z[:1], STEP).seen, module(Z, STEP).seen
    assert torch.equal(one, all_of_them[:1]), "in service a sample's code is its own"


@pytest.mark.parametrize("values", [1, 257, 2.5])
def test_numbers_of_levels_that_make_no_sense_are_refused(values):
    with pytest.raises(ValueError, match="values is a whole number from 2 to 256"):
        LFQ(values=values)
