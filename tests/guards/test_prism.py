"""PRISM: each coordinate goes one way, and each of head, masker and adversary learns from its own loss alone."""

from functools import cache
from itertools import count, islice, product
from math import log, sqrt

import numpy as np
import pytest
import torch
from rotation import and_the_rest, rotation
from scipy.special import entr
from scipy.stats import norm
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot
from toys import TASK, Here, batches, split_and_whole, states, tiny_plan

from cutlayer import BypassNetwork
from cutlayer.core.batch import Batch, Task
from cutlayer.core.seeds import seeded
from cutlayer.guards import Chain, LightSplit, Prism
from cutlayer.guards.base import Support
from cutlayer.guards.parts.adversary import deviations
from cutlayer.guards.parts.distance_correlation import distance_correlation
from cutlayer.guards.parts.masking import SCORES, THRESHOLDS, Mask, Masker
from cutlayer.guards.prism import PRIVACY, information
from cutlayer.nets.bypass import FUSIONS
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla
from cutlayer.training.step import learn

CUT = (4, 5, 5)
every_mask = pytest.mark.parametrize(("score", "threshold"), list(product(SCORES, THRESHOLDS)))


def cut_activation(count=6, shape=CUT, seed=0):
    """Without zeros, so that what is zero was masked."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=draw, dtype=torch.float64).to(torch.get_default_dtype()) + 0.01


def built(shape=CUT, task=TASK, private=2, **settings):
    return Prism(**settings).build(shape, public=1, private=private, task=task)


# ------------------------------------------------------------------ the mask
@every_mask
@pytest.mark.parametrize("training", [True, False])
def test_what_leaves_and_what_stays_are_the_activation_and_share_nothing(score, threshold, training):
    z = cut_activation()
    guarded = built(score=score, threshold=threshold, keep=0.3).train(training)(z, batches(1)[0])
    assert torch.equal(guarded.seen + guarded.home, z)
    assert ((guarded.seen == 0) ^ (guarded.home == 0)).all()
    assert not guarded.seen[guarded.seen == 0].signbit().any(), "-0.0 is a value on the wire"


@pytest.mark.parametrize(("score", "sent"), [("hybrid", 30), ("spatial", 30), ("channel", 25)])
def test_topk_sends_exactly_its_share_of_each_sample(score, sent):
    """round(0.3 x 100) coordinates, or round(0.3 x 4) whole channels."""
    seen = built(keep=0.3, score=score)(cut_activation(), batches(1)[0]).seen
    assert ((seen != 0).flatten(1).sum(1) == sent).all()
    whole = (seen != 0).flatten(2).float().mean(2)
    assert ((whole == 0) | (whole == 1)).all() == (score == "channel")


def test_topk_is_exact_where_scores_tie_and_for_very_small_shares():
    flat = torch.ones(2, *CUT)  # equal coordinates: inner places of a channel have equal scores
    assert ((built(keep=0.3)(flat, batches(1, 2)[0]).seen != 0).flatten(1).sum(1) == 30).all()
    for keep, score, sent in [(0.001, "hybrid", 1), (0.001, "channel", 25), (0.999, "channel", 75)]:
        seen = built(keep=keep, score=score)(cut_activation(), batches(1)[0]).seen
        assert ((seen != 0).flatten(1).sum(1) == sent).all()


@pytest.mark.parametrize("score", SCORES)
def test_topk_takes_the_highest_scores(score):
    masker = Masker(CUT, 0.3, score, "topk")
    z = cut_activation()
    hard = masker(z, 1.0).hard.numpy()
    scores = masker.scores(z).expand_as(z).detach().numpy()
    for kept, own in zip(hard, scores, strict=True):
        assert own[kept].min() >= own[~kept].max()


@pytest.mark.parametrize("score", SCORES)
def test_the_other_thresholds_are_what_they_say(score):
    z = cut_activation()
    for threshold in ("fixed", "learned", "statistical"):
        masker = Masker(CUT, 0.2, score, threshold)
        scores = masker.scores(z).detach().numpy()
        if threshold == "learned":
            nn.init.constant_(masker.tau, 0.05)
            tau = 0.05
        elif threshold == "fixed":
            tau = 0.0
        else:
            rows = scores.reshape(len(z), -1)
            tau = (rows.mean(1) + norm.ppf(0.8) * rows.std(1)).reshape(-1, 1, 1, 1)
        assert np.array_equal(masker(z, 1.0).hard.numpy(), np.broadcast_to(scores > tau, z.shape))


def test_hybrid_scores_mix_those_of_channels_and_of_places():
    masker, z = Masker(CUT, 0.3, "hybrid", "topk"), cut_activation()
    ends = []
    for weight in (-40.0, 40.0):
        nn.init.constant_(masker.score_weight, weight)
        ends.append(masker.scores(z))
    places, channels = ends
    assert torch.equal(channels, channels[:, :, :1, :1].expand_as(z)) and places.std((2, 3)).min() > 0
    nn.init.zeros_(masker.score_weight)
    torch.testing.assert_close(masker.scores(z), (places + channels) / 2)


def test_a_samples_mask_is_its_own():
    z, masker = cut_activation(), Masker(CUT, 0.3, "hybrid", "topk")
    assert torch.equal(masker(z, 1.0).hard[2:3], masker(z[2:3], 1.0).hard)


def test_the_soft_mask_and_its_entropy():
    masker, z = Masker(CUT, 0.3, "hybrid", "fixed"), cut_activation()
    mask = masker(z, 0.1)
    p = torch.sigmoid(masker.scores(z) / 0.1).detach().numpy()
    np.testing.assert_allclose(mask.soft.detach().numpy(), p, rtol=1e-5)
    np.testing.assert_allclose(mask.entropy().item(), (entr(p) + entr(1 - p)).mean(), rtol=1e-5)
    assert not mask.lever().any()
    sure = torch.tensor([-300.0, 300.0])
    assert Mask(sure > 0, sure.sigmoid(), sure).entropy() == 0


def test_evaluation_masks_without_learning():
    module, z, batch = built(), cut_activation(), batches(1)[0]
    seen = module.train()(z, batch).seen
    before = {name: t.clone() for name, t in module.state_dict().items()}
    guarded = module.eval()(z, batch)
    assert torch.equal(guarded.seen, seen) and not guarded.penalty
    assert torch.equal(module(z, Batch(batch.x, batch.y, seed=9)).seen, seen)
    with torch.no_grad():  # an audit encodes in training mode, and knows no attributes
        for attribute in (None, "odd"):
            audited = built(attribute=attribute).train()
            assert not audited(z, Batch(batch.x, batch.y)).penalty
            assert audited.steps == 0
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_the_temperature_falls_to_a_thirtieth_and_is_handed_on():
    module = built(anneal=4).train()
    seen = []
    for batch in batches(6):
        module(cut_activation(), batch)
        seen.append(module.notes["temperature"])
    assert seen == pytest.approx([1, 30**-0.25, 1 / sqrt(30), 30**-0.75, 1 / 30, 1 / 30])
    heir = built(anneal=4)
    heir.load_state_dict(module.state_dict())
    assert heir.temperature() == pytest.approx(1 / 30)


# ------------------------------------------------------------------ who learns from what
def sides(plan):
    client, server, *_ = split_and_whole(plan)
    return client.split.train(), server.body.train()


def grads(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def masked_by_hand(split, body, batch, hard):
    """The task loss of a plain network with a fixed mask: no guard, no adversary, no straight-through anything."""
    z = split.head(batch.x)
    u = body(hard.to(z) * z)
    if isinstance(split, BypassNetwork):
        u = split.rejoin(u, (~hard).to(z) * z)
    return cross_entropy(split.tail(u), batch.y)


@pytest.mark.parametrize("protocol", [UShaped(), Bypass(fusion="hybrid")], ids=repr)
@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("attribute", [None, "odd"])
def test_the_masks_losses_leave_the_gradients_of_the_network_alone_bit_for_bit(protocol, privacy, attribute):
    guard = Prism(keep=0.4, privacy=privacy, attribute=attribute, rho=0.3, gamma=3.0, threshold="statistical")
    plan, batch = tiny_plan(protocol=protocol, guard=guard), batches(1)[0]
    split, body = sides(plan)
    split.loss(batch, Here(body)).backward()
    assert all(grad.any() for name, grad in grads(split.guard).items() if "weight" in name)

    plain, plain_body = sides(plan)
    with torch.no_grad():
        hard = plain.guard.masker(split.head(batch.x), 1.0).hard
    masked_by_hand(plain, plain_body, batch, hard).backward()
    ours = {name: grad for name, grad in grads(split).items() if not name.startswith("guard")}
    assert ours.keys() == grads(plain).keys() and len(ours) > 5
    assert all(torch.equal(grad, ours[name]) for name, grad in grads(plain).items())
    assert all(torch.equal(grad, grads(body)[name]) for name, grad in grads(plain_body).items())


@pytest.mark.usefixtures("double")
@every_mask
def test_the_maskers_task_gradient_is_message_4_times_z(score, threshold):
    """∂L/∂M = ∂L/∂z_S · z: nothing else has to be asked of the server."""
    guard = Prism(keep=0.4, rho=1.0, gamma=0.0, score=score, threshold=threshold)
    plan, batch = (
        tiny_plan(protocol=Bypass(), guard=guard, server_optimizer=tiny_plan().server_optimizer),
        batches(1)[0],
    )
    client, server, twin, twin_server = split_and_whole(plan)
    server.bodies.optimizer = None
    answers, send = [], client.remote._send
    client.remote._send = lambda message: answers.append(send(message)) or answers[-1]
    client.split.train().loss(batch, client.remote).backward()
    m4 = answers[1]["dz"]

    split, body = twin.split.train(), twin_server.body.train()
    z = split.head(batch.x).detach()
    mask = split.guard.masker(z, 1.0)
    M = mask.hard.to(z) + mask.soft - mask.soft.detach()
    M.retain_grad()
    u = body(M * z)
    loss = cross_entropy(split.tail(split.rejoin(u, (1 - M).detach() * z)), batch.y)
    loss.backward()
    torch.testing.assert_close(M.grad, m4 * z)
    assert m4.any()
    explicit, ours = grads(split.guard.masker), grads(client.split.guard.masker)
    assert explicit.keys() == ours.keys()
    assert sum(grad.abs().sum() for grad in ours.values()) > 0
    for name, grad in explicit.items():
        torch.testing.assert_close(ours[name], grad, msg=name)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("attribute", [None, "odd"])
@pytest.mark.parametrize("rho", [0.0, 0.25])
def test_the_adversary_descends_its_own_loss_and_the_masker_climbs_it_up_to_chance(attribute, rho):
    module = built(privacy="adversary", attribute=attribute, rho=rho, gamma=0.0).train()
    z, batch = cut_activation(), batches(1)[0]
    guarded = module(z.requires_grad_(), batch)
    guarded.penalty["Prism adversary"].backward()
    assert z.grad is None, "the head learns nothing from the adversary"

    adversary = module.opponent.adversary
    weights = {name: p.detach().requires_grad_() for name, p in adversary.named_parameters()}
    mask = module.masker(z.detach(), 1.0)
    leaving = (mask.hard.to(z) + mask.soft - mask.soft.detach()) * z.detach()

    def losses(seen, weights):
        guess = functional_call(adversary, weights, (seen,))
        if attribute is None:
            return (guess - deviations(batch.x)).square().flatten(1).mean(1), 1.0
        return cross_entropy(guess, batch.s["odd"], reduction="none"), log(2)

    own, chance = losses(leaving.detach(), weights)
    for name, grad in zip(weights, torch.autograd.grad(own.mean(), list(weights.values())), strict=True):
        torch.testing.assert_close(adversary.get_parameter(name).grad, grad)
    climbed, _ = losses(leaving, {name: weight.detach() for name, weight in weights.items()})
    bounded = -(1 - rho) * torch.minimum(climbed, torch.full_like(climbed, chance)).mean()
    parameters = dict(module.masker.named_parameters())
    expected = torch.autograd.grad(bounded, list(parameters.values()))
    for parameter, grad in zip(parameters.values(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("attribute", [None, "odd"])
def test_distance_correlation_of_what_leaves_with_what_is_to_be_hidden(attribute):
    module, z, batch = built(privacy="dcor", attribute=attribute, rho=0.25).train(), cut_activation(), batches(1)[0]
    guarded = module(z.requires_grad_(), batch)
    secret = batch.x if attribute is None else one_hot(batch.s["odd"]).to(z)
    expected = distance_correlation(secret, guarded.seen.detach())
    torch.testing.assert_close(guarded.penalty["Prism privacy"], 0.75 * expected)
    guarded.penalty["Prism privacy"].backward()
    assert z.grad is None and any(grad.any() for grad in grads(module.masker).values())


@pytest.mark.parametrize("attribute", [None, "odd"])
def test_the_bound_on_the_information_reaches_the_masker_and_the_likelihood_the_adversary(attribute):
    module = built(privacy="information", attribute=attribute).train()
    z, batch = cut_activation().requires_grad_(), batches(1)[0]
    guarded = module(z, batch)
    guarded.penalty["Prism privacy"].backward(retain_graph=True)
    assert z.grad is None and not grads(module.opponent)
    module.zero_grad()
    guarded.penalty["Prism adversary"].backward()
    assert z.grad is None and not any(grad.any() for grad in grads(module.masker).values())
    assert all(grad.any() for grad in grads(module.opponent).values())


def test_the_bound_is_vclub():
    """Over all pairs, one by one: mean of log q(s_i|z_i) - log q(s_j|z_i)."""
    batch, draw = batches(1, size=12)[0], torch.Generator().manual_seed(0)
    scores = torch.randn(12, 2, generator=draw) + 3 * one_hot(batch.s["odd"])
    log_q = scores.log_softmax(1)
    pairs = [log_q[i, batch.s["odd"][i]] - log_q[i, batch.s["odd"][j]] for i, j in product(range(12), repeat=2)]
    torch.testing.assert_close(information(scores, batch, "odd"), torch.stack(pairs).mean())
    truth = deviations(batch.x)
    guess = truth + 0.3 * torch.randn(truth.shape, generator=draw)
    log_q = -(guess[:, None] - truth).square().flatten(2).mean(2)  # of x_j around the guess for i
    torch.testing.assert_close(information(guess, batch, None), (log_q.diagonal() - log_q.mean(1)).mean())
    assert information(torch.ones_like(truth), batch, None) < 1e-6, "who always says the same knows nothing"
    assert information(-scores, batch, "odd") == 0, "and who is wrong must not be made more so"


def test_the_bound_is_above_the_information():
    """A secret of two values read through a channel that errs one time in four, which q knows."""
    secret = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    read = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
    q = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log()
    exact = log(2) + 0.75 * log(0.75) + 0.25 * log(0.25)
    batch = Batch(torch.zeros(8, 1), secret, {"odd": secret})
    assert information(q[read], batch, "odd").item() == pytest.approx(log(3) / 4) and log(3) / 4 > exact


def test_the_shape_of_the_mask_is_penalised():
    z, batch = cut_activation(), batches(1)[0]
    for threshold in THRESHOLDS:
        module = built(threshold=threshold, gamma=0.7, keep=0.2).train()
        mask = module.masker(z, 1.0)
        off = 0.0 if threshold == "topk" else (mask.hard.float().mean() - 0.2).square()
        torch.testing.assert_close(module(z, batch).penalty["Prism"], 0.7 * (off + mask.entropy()))


@pytest.mark.parametrize("threshold", ["fixed", "learned"])
def test_the_share_that_leaves_goes_where_it_should(threshold):
    masker, z, shares = built(threshold=threshold, private=0).masker, cut_activation(64), []
    optimizer = torch.optim.Adam(masker.parameters(), 3e-3)
    for _ in range(60):
        share = masker(z, 1.0).share()
        optimizer.zero_grad()
        (share - 0.2).square().backward()
        optimizer.step()
        shares.append(share.item())
    assert abs(shares[0] - 0.2) > 0.05
    assert abs(shares[-1] - 0.2) < 0.03


# ------------------------------------------------------------------ what it learns
CHANNELS = Task((1, 3, 3), 2, {"odd": 2})
STARTS = 20


def chooser(start, **settings):
    """A guard that sends one of four channels of each sample; its masker depends on `start` alone."""
    return built((4, 3, 3), CHANNELS, private=start, keep=0.25, score="channel", gamma=0.0, **settings)


def four_channels(draw):
    """Channel 0 shows whether a sample is odd and, in noise, its input; the others show nothing.

    Without noise what leaves would be the secret itself: dCor is at its maximum there, and has no slope.
    """
    odd = torch.arange(32) % 2
    z = torch.rand(32, 4, 3, 3, generator=draw)
    z[:, 0] += 2.0 * odd[:, None, None] - 1
    x = z[:, :1] + 0.5 * torch.randn(32, 1, 3, 3, generator=draw)
    return z, Batch(x, odd, {"odd": odd})


def share_of_channel_0(seen):
    return (seen[:, 0] != 0).flatten(1).any(1).float().mean().item()


@cache
def starts_that_send_the_secret():
    z, batch = four_channels(torch.Generator().manual_seed(1))
    sending = (start for start in count() if share_of_channel_0(chooser(start).eval()(z, batch).seen) == 1)
    return list(islice(sending, STARTS))


def route(start, steps, task=False, **settings):
    """How often channel 0 leaves, in the last ten steps in which masker and adversary learn.

    With `task` the server's loss falls with channel 0 and grows with the others.
    """
    module, draw = chooser(start, **settings).train(), torch.Generator().manual_seed(start)
    optimizer, left = torch.optim.Adam(module.parameters(), 0.03), []
    for _ in range(steps):
        z, batch = four_channels(draw)
        guarded = module(z, batch)
        loss = sum(guarded.penalty.values())
        if task:
            seen = Support()(guarded.seen)
            loss = loss + (seen[:, 1:].abs().mean() - seen[:, 0].abs().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        left.append(share_of_channel_0(guarded.seen))
    return sum(left[-10:]) / 10


@pytest.mark.parametrize(("salient", "sent"), [("server", True), ("home", False)])
def test_what_helps_the_task_goes_to_the_server_or_stays_home(salient, sent):
    left = [route(start, 40, task=True, rho=1.0, salient=salient, privacy="dcor") for start in range(10)]
    assert sum((share > 0.5) == sent for share in left) >= 8


def test_salient_turns_the_task_gradient_around_and_nothing_else():
    found = []
    for salient in ("server", "home"):
        guard = Prism(keep=0.4, rho=1.0, gamma=0.0, salient=salient)
        split, body = sides(tiny_plan(guard=guard))
        split.loss(batches(1)[0], Here(body)).backward()
        found.append(grads(split))
    for name, grad in found[0].items():
        sign = -1 if ".masker." in name else 1
        assert torch.equal(found[1][name], sign * grad)


ROUTES = [({}, 70, None), ({"privacy": "dcor"}, 40, "odd")]
OTHER_ROUTES = [({}, 70, "odd"), ({"privacy": "dcor"}, 40, None)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("settings", "steps", "attribute"),
    [*ROUTES, *(pytest.param(*route, marks=pytest.mark.campaign) for route in OTHER_ROUTES)],
    ids=["default", "dcor of an attribute", "default of an attribute", "dcor"],
)
def test_what_shows_the_secret_stays_home(settings, steps, attribute):
    """Of maskers that start by sending it; a few may be stuck. For `privacy="adversary"` see the next test."""
    left = [route(start, steps, attribute=attribute, rho=0.0, **settings) for start in starts_that_send_the_secret()]
    assert sum(share < 0.2 for share in left) >= 13


def test_the_bound_has_a_slope_where_an_adversary_that_knows_the_secret_has_none():
    """Of the guess itself, that is: one reason why the bound is the default."""
    batch = batches(1, size=12)[0]
    truth = deviations(batch.x)
    for attribute, knowing in ((None, truth), ("odd", 30.0 * one_hot(batch.s["odd"]))):
        guess = knowing.clone().requires_grad_()
        loss = (guess - truth).square().mean() if attribute is None else cross_entropy(guess, batch.s["odd"])
        (flat,) = torch.autograd.grad(loss, guess)
        (steep,) = torch.autograd.grad(information(guess, batch, attribute), guess)
        assert flat.norm() < 1e-6 < 1e-2 < steep.norm()


# ------------------------------------------------------------------ in a run
def heard(plan, steps=3):
    """Messages and answers of a few steps, and the client."""
    client, *_ = split_and_whole(plan)
    said, send = [], client.remote._send
    client.remote._send = lambda message: said.append((message, send(message))) or said[-1][1]
    for batch in batches(steps):
        learn(client, batch)
    return said, client


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
def test_both_messages_at_the_cut_are_zero_where_the_mask_is(protocol, rescale):
    said, _ = heard(tiny_plan(protocol=protocol, guard=Prism(keep=0.3, rescale=rescale)))
    forward, backward = said[0::2], said[1::2]
    for (up, _), (_, down) in zip(forward, backward, strict=True):
        z, dz = up["z"], down["dz"]
        assert ((z != 0).flatten(1).sum(1) <= 30).all() and z.any()
        assert dz.any() and not dz[z == 0].any()
        assert not dz[z == 0].signbit().any() and not z[z == 0].signbit().any()


def test_what_stays_home_counts_and_is_in_no_message():
    plan = tiny_plan(protocol=Bypass(fusion="hybrid"), guard=Prism(keep=0.3))
    client, _, twin, _ = split_and_whole(plan)
    said, send = [], client.remote._send
    client.remote._send = lambda message: said.append(message) or send(message)
    batch = batches(1)[0]
    with torch.no_grad():
        logits = client.split.eval()(batch, client.remote).logits
        rejoin = client.split.rejoin.forward
        client.split.rejoin.forward = lambda u, home: rejoin(u, 2 * home)
        louder = client.split(batch, client.remote).logits
        client.split.rejoin.forward = rejoin
        z = client.split.head(batch.x)
    assert torch.equal(said[0]["z"], said[1]["z"]) and not torch.allclose(logits, louder)
    hard = twin.split.guard.masker(z, 1.0).hard
    assert torch.equal(said[0]["z"], torch.where(hard, z, 0.0))


MASKS = [*product(SCORES, THRESHOLDS)]
# Every mask with every kind of privacy and with every fusion; the campaign has all three together.
IN_TURN = rotation(MASKS, PRIVACY, FUSIONS, kind=lambda mask: mask)


@pytest.mark.parametrize(("mask", "privacy", "fusion"), and_the_rest(IN_TURN, MASKS, PRIVACY, FUSIONS))
def test_every_combination_learns_split_as_it_does_whole(mask, privacy, fusion):
    score, threshold = mask
    attribute = "odd" if fusion == "concat" else None
    guard = Prism(score=score, threshold=threshold, privacy=privacy, attribute=attribute, keep=0.3, anneal=2)
    client, server, twin, twin_server = split_and_whole(tiny_plan(protocol=Bypass(fusion=fusion), guard=guard))
    start = {name: t.clone() for name, t in states(client, server).items()}
    for batch in batches(2):
        terms = learn(client, batch)
        assert all(np.isfinite(list(terms.values()))) and {"kept", "temperature"} <= terms.keys()
        twin.split.train()
        with seeded(batch.seed):
            twin.split.loss(batch, Here(twin_server.body.train())).backward()
            for optimizer in (twin.optimizer, twin_server.optimizer):
                optimizer.step()
                optimizer.zero_grad()
    ours, theirs = states(client, server), states(twin, twin_server)
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())
    still = {name for name, t in ours.items() if torch.equal(t, start[name])}
    assert not {name for name in still if "weight" in name and "masker.trunk" not in name and ".mix." not in name}


def test_rescaling_starts_as_nothing_and_learns_on_both_streams():
    plan = tiny_plan(protocol=Bypass(), guard=Prism(keep=0.3, rescale=True))
    plain = built(keep=0.3)(cut_activation(), batches(1)[0])
    scaled = built(keep=0.3, rescale=True)(cut_activation(), batches(1)[0])
    assert torch.equal(plain.seen, scaled.seen)
    torch.testing.assert_close(plain.home, scaled.home)
    client, server, *_ = split_and_whole(plan)
    before = client.split.guard.rescale.weight.clone(), server.body.lift[1].weight.clone()
    for batch in batches(2):
        learn(client, batch)
    assert not torch.equal(client.split.guard.rescale.weight, before[0])
    assert not torch.equal(server.body.lift[1].weight, before[1])


def test_the_server_is_not_told_what_is_protected():
    guard = Prism(attribute="odd", rho=0.1, rescale=True)
    assert repr(guard.public_part()) == "Prism(keep=0.1, rescale=True)"
    assert "mask" in guard.claim(CUT) and guard.claim(CUT).startswith("none")


# ------------------------------------------------------------------ what it refuses
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"keep": keep}, "between 0 and 1") for keep in (0, 1, -0.1, 1.5, "half")),
        ({"score": "pixels"}, "hybrid, channel, spatial"),
        ({"threshold": "median"}, "topk, fixed, learned, statistical"),
        ({"privacy": "noise"}, "information, adversary, dcor"),
        ({"salient": "away"}, "server, home"),
        ({"rho": 1.1}, "from 0 to 1"),
        ({"gamma": -1}, "from 0 up"),
        ({"gamma": float("nan")}, "from 0 up"),
        ({"anneal": 0}, "from 1 up"),
        ({"anneal": 2.5}, "from 1 up"),
        ({"attribute": 3}, "name of a sensitive attribute"),
    ],
)
def test_settings_that_cannot_work(settings, words):
    with pytest.raises(ValueError, match=words):
        Prism(**settings)


@pytest.mark.parametrize("shape", [(7,), (4, 9), (2, 3, 4, 5)])
def test_cuts_that_are_no_maps(shape):
    with pytest.raises(ValueError, match="channels x height x width"):
        Prism().out_shape(shape)


def test_a_single_channel_cannot_be_chosen_among_but_its_places_can():
    with pytest.raises(ValueError, match="score='spatial'"):
        Prism(score="channel").out_shape((1, 5, 5))
    assert Prism().out_shape((1, 5, 5)) == (1, 5, 5)


def test_a_missing_attribute_is_refused_before_training_and_named():
    with pytest.raises(ValueError, match="'age', an attribute this data does not have; it has odd"):
        cut_shapes(tiny_plan(guard=Prism(attribute="age")), TASK)
    with pytest.raises(ValueError, match="'age'"):
        built(attribute="age")
    for privacy in PRIVACY:
        module = built(attribute="odd", privacy=privacy).train()
        with pytest.raises(ValueError, match=r"fill Batch\.s"):
            module(cut_activation(), Batch(torch.rand(6, 1, 12, 12), torch.zeros(6).long()))
    with pytest.raises(ValueError, match="task="):
        Prism().build(CUT, 1, 2)


def test_it_comes_first_in_a_chain_and_before_nothing_that_fills_zeros():
    with pytest.raises(ValueError, match="the zeros are gone"):
        Chain(Prism(), LightSplit(ratio=4))
    with pytest.raises(ValueError, match="already kept"):
        Chain(Prism(), Prism())


def test_a_plan_with_every_side_can_be_built_and_predicts():
    plan = tiny_plan(protocol=Bypass(), guard=Prism(attribute="odd"))
    server = build_server(plan.public(), TASK)
    client = build_client(plan, TASK, 0, server.handle)
    assert cut_shapes(plan, TASK).shared == CUT
    with torch.no_grad():
        assert client.split.eval()(batches(1)[0], client.remote).logits.shape == (6, 3)
