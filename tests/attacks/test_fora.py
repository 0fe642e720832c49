"""FORA: its distances against slow formulas, its networks against the shape of a cut, the attack against guards."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from rotation import and_the_rest
from torch import nn
from toys import TASK, samples

from cutlayer.attacks import FORA, Knowledge, KnownGuard, fora
from cutlayer.attacks.base import smashed
from cutlayer.attacks.fora import Scale, _row_network
from cutlayer.attacks.parts.critic import Critic, gradient_penalty
from cutlayer.attacks.parts.mmd import mk_mmd
from cutlayer.attacks.parts.prior import learn_to_draw
from cutlayer.attacks.parts.row_substitute import RowSubstitute
from cutlayer.attacks.parts.substitute import BLOCKS, Substitute
from cutlayer.core.batch import Batch, Task
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import seeded
from cutlayer.guards import SEAL, KAnonymous, LightSplit, NoGuard, Noise
from cutlayer.metrics.images import ncc
from cutlayer.metrics.readers import Chosen, fit
from cutlayer.metrics.series import correlation_either

SMALL = FORA(steps=100, reader_steps=100, width=8, reader_width=16, hidden=128, critic_width=8)
CUT = (4, 5, 5)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- MK-MMD ---


def slow_mmd(a, b, mean=None):
    """Written out pair by pair."""
    rows, n = [*a.flatten(1), *b.flatten(1)], len(a)
    square = [[(p - q).square().sum() for q in rows] for p in rows]
    mean = mean or sum(float(s) for row in square for s in row) / (2 * n) ** 2
    kernel = [[sum(torch.exp(-s / (2 * alpha * mean)) for alpha in (0.125, 0.25, 0.5, 1.0, 2.0)) for s in row] for row in square]  # fmt: skip # noqa: E501
    total = 0
    for i in range(n):
        for j in range(n):
            if i != j:
                total = total + (kernel[i][j] + kernel[n + i][n + j]) / (n * (n - 1))
            total = total - 2 * kernel[i][n + j] / n**2
    return total + 2 / (n - 1), mean


def test_mmd_is_the_formula_pair_by_pair():
    a, b = normal(5, 2, 3, seed=1), normal(5, 2, 3, seed=2) * 1.5 + 0.3
    torch.testing.assert_close(mk_mmd(a, b), slow_mmd(a, b)[0])
    torch.testing.assert_close(mk_mmd(a, b), mk_mmd(b, a))


def test_no_gradient_goes_through_the_bandwidth():
    a, b = normal(4, 6, seed=1), (normal(4, 6, seed=2) + 1).requires_grad_()
    (got,) = torch.autograd.grad(mk_mmd(a, b), b)
    _, mean = slow_mmd(a, b.detach())
    (want,) = torch.autograd.grad(slow_mmd(a, b, mean)[0], b)
    torch.testing.assert_close(got, want)


def test_mmd_of_one_distribution_is_its_constant_on_average_and_grows_with_the_distance():
    n = 16
    alike = torch.stack([mk_mmd(normal(n, 8, seed=i), normal(n, 8, seed=1000 + i)) for i in range(200)])
    assert abs(float(alike.mean()) - 2 / (n - 1)) < 4 * float(alike.std()) / math.sqrt(200)
    apart = [float(mk_mmd(normal(64, 8, seed=1), normal(64, 8, seed=2) + shift)) for shift in (0, 0.5, 1, 2)]
    assert apart == sorted(apart) and apart[3] > apart[0] + 1


def test_mmd_does_not_know_units_or_origins():
    a, b = normal(6, 5, seed=1), normal(6, 5, seed=2) + 1
    torch.testing.assert_close(mk_mmd(1e3 * a + 7e5, 1e3 * b + 7e5), mk_mmd(a, b))


def test_rows_that_are_all_the_same_have_a_distance_and_a_gradient():
    b = torch.zeros(4, 3, requires_grad=True)
    value = mk_mmd(torch.zeros(4, 3), b)
    value.backward()
    assert value.isfinite() and b.grad.isfinite().all()


@pytest.mark.parametrize("rows", [(1, 1), (4, 3)])
def test_mmd_needs_as_many_rows_as_rows(rows):
    with pytest.raises(ValueError, match=r"two at least; got"):
        mk_mmd(torch.zeros(rows[0], 2), torch.zeros(rows[1], 2))


# --- the critic ---


class Plane(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, z):
        return (z * self.weights).flatten(1).sum(1)


def test_the_penalty_of_a_plane_is_how_far_its_slope_is_from_one():
    critic = Plane(normal(2, 3, 3, seed=3))
    slope = critic.weights.detach().norm()  # over the whole row, not channel by channel
    penalty = gradient_penalty(critic, normal(4, 2, 3, 3, seed=1), normal(4, 2, 3, 3, seed=2))
    torch.testing.assert_close(penalty.detach(), (slope - 1) ** 2)
    penalty.backward()
    torch.testing.assert_close(critic.weights.grad, 2 * (slope - 1) * critic.weights.detach() / slope)


def test_the_penalty_is_taken_between_the_two_with_one_share_a_row():
    seen = []

    class Watch(nn.Module):
        def forward(self, z):
            seen.append(z.detach())
            return z.flatten(1).sum(1)

    gradient_penalty(Watch(), torch.zeros(50, 2, 3), torch.ones(50, 2, 3))
    (between,) = seen
    assert ((between > 0) & (between < 1)).all()
    assert torch.equal(between, between[:, :1, :1].expand_as(between)) and between[:, 0, 0].std() > 0.2


def test_a_flat_critic_has_a_penalty_with_a_gradient():
    critic = Plane(torch.zeros(3))
    gradient_penalty(critic, torch.zeros(2, 3), torch.ones(2, 3)).backward()
    assert critic.weights.grad.isfinite().all()


@pytest.mark.parametrize("cut", [(4, 5, 5), (8, 12, 12), (3, 32, 32), (16, 1, 1), (2, 4, 7), (36,), (5, 8)])
def test_a_critic_says_one_number_a_row_and_rows_do_not_mix(cut):
    critic = Critic(cut, 8, 1)
    z = normal(3, *cut, dtype=torch.float32)
    assert critic(z).shape == (3,)
    torch.testing.assert_close(critic(z)[1:2], critic(z[1:2]))


# --- the substitute ---


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize(
    ("image", "cut"),
    [
        ((1, 12, 12), (4, 5, 5)),
        ((1, 28, 28), (8, 12, 12)),
        ((1, 28, 28), (16, 8, 8)),
        ((3, 32, 32), (64, 16, 16)),
        ((3, 32, 32), (5, 32, 32)),
        ((3, 32, 32), (7, 11, 11)),
        ((3, 64, 64), (32, 4, 4)),
        ((3, 64, 48), (6, 16, 12)),
        ((1, 12, 12), (3, 14, 14)),
        ((3, 50, 50), (9, 1, 1)),
        ((1, 28, 28), (144,)),
        ((3, 64, 64), (10, 6)),
    ],
)
def test_a_substitute_has_the_shape_of_the_cut(blocks, image, cut):
    assert Substitute(image, cut, 4, blocks)(torch.rand(2, *image)).shape == (2, *cut)


def test_its_stages_are_those_of_the_release():
    # Level 3: 2 x 64, pool, 2 x 128, pool; level 2: 2 x 64, pool.
    def widths(cut):
        return [layer.out_channels for layer in Substitute((3, 32, 32), cut, 4).modules() if isinstance(layer, nn.Conv2d)]  # fmt: skip # noqa: E501

    assert widths((64, 16, 16)) == [64, 64] and widths((128, 8, 8)) == [64, 64, 128, 128]


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("cut", [CUT, (30,)])
def test_it_is_negative_only_where_the_clients_is(blocks, cut):
    x = samples(20, 1).x
    with seeded(0):
        assert Substitute(TASK.shape, cut, 4, blocks, signed=False)(x).min() >= 0
        assert Substitute(TASK.shape, cut, 4, blocks, signed=True)(x).min() < 0


def test_a_cut_without_its_border_is_the_middle_of_the_image():
    with seeded(0):
        substitute = Substitute((1, 28, 28), (8, 12, 12), 8, signed=True).eval()
    plain, dotted = torch.zeros(2, 1, 28, 28), torch.zeros(2, 1, 28, 28)
    dotted[:, :, 10, 20] = 1
    moved = (substitute(plain) - substitute(dotted)).abs().sum((0, 1))
    rows, columns = torch.nonzero(moved.sum(1)).flatten(), torch.nonzero(moved.sum(0)).flatten()
    # Two 3x3 convolutions reach two pixels; half the size, less one pixel of border.
    assert rows.tolist() == [3, 4, 5] and columns.tolist() == [8, 9, 10]


# --- the attack ---


def victim(guard=None, count=96, cut=CUT, head=None):
    """Messages of a client that the attack knows nothing of, the images behind them, and what it may know."""
    guard = guard or NoGuard()
    with seeded(7):
        convolution = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    head = (head or convolution).requires_grad_(False)
    private, aux = samples(count, 2), samples(120, 1)
    module = guard.build(cut, 5, 6, TASK)
    messages, truth = [], []
    for step, rows in enumerate(torch.arange(count).split(16)):
        x = private.x[rows]
        out = module(head(x), Batch(x, private.y[rows], seed=step))
        messages += [
            Message(Kind.FORWARD, 0, step, {"z": out.seen}),
            Message(Kind.BACKWARD, 0, step, {"du": out.seen}),
        ]
        truth.append(x if out.rows is None else torch.stack([x[out.rows == r].mean(0) for r in range(len(out.seen))]))
    knowledge = Knowledge(aux=aux.x, observed=messages, guard=KnownGuard(guard, cut, 5, TASK))
    return knowledge, torch.cat(truth)


def made(attack, knowledge, seed=0):
    with seeded(seed):
        return attack.attacker(knowledge.only(attack.needs), seed)


def quality(attack, guard=None, **changes):
    knowledge, truth = victim(guard, **changes)
    attacker = made(attack, knowledge)
    guess = attacker.reconstruct(knowledge.observed)
    assert guess.shape == truth.shape and guess.min() >= 0 and guess.max() <= 1
    return ncc(truth, guess).mean().item()


FLOOR = ncc(samples(96, 2).x, samples(120, 1).x.mean(0).expand(96, *TASK.shape)).mean().item()


# Enough to read an open cut by; what is compared below is further apart after more steps.
SHORT = replace(SMALL, steps=60, reader_steps=60)


@pytest.mark.parametrize(
    "attack",
    [
        SHORT,
        replace(SHORT, prior=True),
        *(
            pytest.param(replace(SHORT, **other), marks=pytest.mark.campaign)
            for other in ({"blocks": "resnet"}, {"blocks": "dense"}, {"mix": 0.8}, {"reader": "mlp"})
        ),
    ],
    ids=repr,
)
def test_it_reads_an_unguarded_cut_that_it_knows_only_the_shape_of(attack):
    assert quality(attack) > FLOOR + 0.1


def test_alignment_is_what_does_it():
    assert quality(replace(SMALL, steps=1)) < quality(SMALL) - 0.3


@pytest.mark.campaign
def test_the_critic_alone_aligns_as_well():
    alone = replace(SMALL, mix=0.0, steps=150, critic_rate=2e-3)
    assert quality(alone) > quality(replace(SMALL, steps=1)) + 0.3


def test_a_projection_is_read_by_whoever_puts_it_into_the_substitute():
    guard, attack = LightSplit(ratio=4), replace(SMALL, steps=150, reader_steps=120)
    matched = quality(replace(attack, knows="matched"), guard)
    assert matched > FLOOR + 0.05
    assert matched > quality(replace(attack, knows="lift"), guard) + 0.2


OTHERS, FORMS = [SEAL(energy=0.9), Noise(scale=0.05)], ["matched", "oblivious"]


@pytest.mark.parametrize(
    ("guard", "knows"), and_the_rest([*zip(OTHERS, FORMS, strict=True)], OTHERS, FORMS), ids=repr
)
def test_other_guards_in_their_forms(guard, knows):
    assert quality(replace(SHORT, knows=knows), guard) > FLOOR


@pytest.mark.parametrize("knows", ["oblivious", "matched"])
def test_rows_that_samples_share_are_read_as_one_picture_each(knows):
    knowledge, truth = victim(KAnonymous(k=4))
    guess = made(replace(SMALL, knows=knows, steps=5, reader_steps=5), knowledge).reconstruct(knowledge.observed)
    assert guess.shape == truth.shape and len(guess) == len(smashed(knowledge.observed)) < 96


@pytest.mark.parametrize("shape", [(60,), (5, 12)])
def test_a_cut_that_is_no_map_is_read_fully_connected(shape):
    with seeded(3):
        head = nn.Sequential(nn.Flatten(), nn.Linear(144, 60), nn.ReLU(), nn.Unflatten(1, shape))
    knowledge, truth = victim(cut=shape, head=head)
    attacker = made(replace(SMALL, steps=5, reader_steps=5), knowledge)
    assert attacker.reconstruct(knowledge.observed).shape == truth.shape and attacker.remarks()["reader"] == "mlp"
    with pytest.raises(ValueError, match=r"a convolution reads maps.*reader='mlp'"):
        made(replace(SMALL, steps=2, reader_steps=2, reader="conv"), knowledge)


def test_the_distance_left_is_remarked_and_shrinks():
    knowledge, _ = victim()
    before, after = (made(replace(SMALL, steps=n, reader_steps=2), knowledge).remarks()["mmd"] for n in (1, 100))
    assert after < before / 3


def test_features_can_be_scored_by_whoever_has_the_clients():
    knowledge, truth = victim()
    close, far = (made(replace(SMALL, steps=n, reader_steps=2), knowledge) for n in (200, 1))
    theirs = close.read(knowledge.observed)
    assert torch.equal(theirs, smashed(knowledge.observed)) and close.features(truth).shape == theirs.shape
    errors = [(attacker.features(truth) - theirs).square().mean().item() for attacker in (close, far)]
    assert errors[0] < errors[1] / 2


def test_behind_a_copy_and_a_lift_there_are_two_readers(monkeypatch):
    knowledge, truth = victim(LightSplit(ratio=4))
    attack = replace(SMALL, knows="matched+lift", steps=2, reader_steps=2)
    for better, kind in (("conv", fora.ConvReader), ("mlp", fora.MLPReader)):

        def choose(spec, names, rows, seed, train, score, better=better):
            assert list(names) == ["conv", "mlp"] and score(train("conv")) < 0
            return Chosen(train(better), better, {})

        monkeypatch.setattr(fora, "best_reader", choose)
        attacker = made(attack, knowledge)
        assert attacker.remarks()["reader"] == better and isinstance(attacker.reader.network, kind)
        assert attacker.reconstruct(knowledge.observed).shape == truth.shape
    monkeypatch.undo()
    assert made(attack, knowledge).remarks()["reader"] in ("conv", "mlp")
    assert made(replace(attack, reader="conv"), knowledge).remarks()["reader"] == "conv"


@pytest.mark.parametrize(("spoilt", "kept"), [("conv", "mlp"), ("mlp", "conv")])
def test_of_two_readers_it_takes_the_one_whose_pictures_would_be_sent_as_what_was_seen(spoilt, kept, monkeypatch):
    def fit_but_one(network, *given, **settings):
        trained = fit(network, *given, **settings)
        if isinstance(network, {"conv": fora.ConvReader, "mlp": fora.MLPReader}[spoilt]):
            for parameter in network.parameters():
                nn.init.zeros_(parameter)
        return trained

    monkeypatch.setattr(fora, "fit", fit_but_one)
    knowledge, _ = victim(LightSplit(ratio=4))
    few = replace(SMALL, knows="matched+lift", steps=50, reader_steps=50)
    assert made(few, knowledge).remarks()["reader"] == kept


def test_lifted_features_are_compared_where_the_lift_ends():
    knowledge, truth = victim(LightSplit(ratio=4))
    attacker = made(replace(SMALL, knows="lift", steps=2, reader_steps=2), knowledge)
    assert attacker.read(knowledge.observed).shape == attacker.features(truth).shape == (96, *CUT)


def test_without_the_critics_share_the_penalty_does_not_matter():
    knowledge, _ = victim()
    tiny = replace(SMALL, steps=5, reader_steps=2)
    marks = {
        (mix, penalty): made(replace(tiny, mix=mix, penalty=penalty), knowledge).remarks()["mmd"]
        for mix in (1.0, 0.2)
        for penalty in (0.0, 1000.0)
    }
    assert marks[1.0, 0.0] == marks[1.0, 1000.0]
    assert marks[0.2, 0.0] != marks[0.2, 1000.0]


@pytest.mark.parametrize(
    ("channels", "mix", "enough", "critics"),
    [(1, None, 20, 0), (3, None, 20, 16), (3, None, 21, 0), (3, 1.0, 20, 0), (1, 0.8, 21, 16)],
)
def test_by_default_a_critic_joins_for_images_in_colour_and_many_steps(channels, mix, enough, critics, monkeypatch):
    penalised = []
    monkeypatch.setattr(fora, "ENOUGH_FOR_A_CRITIC", enough)
    monkeypatch.setattr(fora, "gradient_penalty", lambda *given: penalised.append(1) or gradient_penalty(*given))
    aux = torch.rand(40, channels, 12, 12)
    seen = [Message(Kind.FORWARD, 0, 0, {"z": torch.rand(40, *CUT)})]
    known = Knowledge(aux=aux, observed=seen, guard=KnownGuard(NoGuard(), CUT, 3, TASK))
    made(replace(SMALL, steps=20, reader_steps=2, mix=mix), known)
    # Of 20 steps the critic is heard from the 6th on, and learns a fifth of that time before.
    assert len(penalised) == (0 if not critics else 20 - 5)


def test_the_critic_learns_before_it_is_heard(monkeypatch):
    knowledge, _ = victim()
    penalised = []
    monkeypatch.setattr(fora, "gradient_penalty", lambda *given: penalised.append(1) or gradient_penalty(*given))
    tiny = replace(SMALL, steps=20, reader_steps=2, penalty=1.0)
    found = {}
    for mix, joins in ((0.2, 0.0), (0.2, 0.5), (0.2, 1.0), (1.0, 0.0)):
        penalised.clear()
        found[mix, joins] = made(replace(tiny, mix=mix, joins=joins), knowledge).remarks()["mmd"], len(penalised)
    # Of 20 steps it is heard from the 10th on and learns from the 8th on; heard at the very end means never.
    assert [count for _, count in found.values()] == [20, 12, 4, 0]
    assert len({mmd for mmd, _ in found.values()}) > 2


def test_messages_are_measured_by_their_own_spread_and_dead_channels_stay_small():
    z = normal(200, 3, 4, 4, seed=1) * torch.tensor([5.0, 1.0, 0.0]).view(1, 3, 1, 1) + 2
    scaled = Scale.of(z)(z)
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(3, dtype=z.dtype))
    assert scaled[:, :2].std((0, 2, 3)).tolist() == pytest.approx([1, 1])
    assert Scale.of(z)(z + 1e-3)[:, 2].abs().max() < 0.1


def test_another_seed_is_another_attacker_and_the_same_seed_the_same():
    knowledge, _ = victim()
    tiny = replace(SMALL, steps=3, reader_steps=3)
    one, same, other = (made(tiny, knowledge, seed).reconstruct(knowledge.observed) for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("knows", ["oblivious", "lift", "matched", "matched+lift"])
def test_an_attacker_can_be_written_down(knows):
    knowledge, _ = victim(LightSplit(ratio=4))
    attacker = made(replace(SMALL, knows=knows, steps=2, reader_steps=2), knowledge)
    again = pickle.loads(pickle.dumps(attacker))
    assert torch.equal(attacker.reconstruct(knowledge.observed), again.reconstruct(knowledge.observed))


def test_a_prior_draws_what_it_learnt_and_stays_as_it_is():
    x = samples(200, 1).x
    with seeded(0):
        generator = learn_to_draw(x, 16, 80)
    code = normal(2, 64, dtype=torch.float32)
    assert torch.equal(generator(code), generator(code)), "its noise is for learning only"
    assert not any(p.requires_grad for p in generator.parameters())
    assert ncc(x.mean(0).expand(2, *TASK.shape), generator(code)).mean() > 0.3


def test_the_search_finds_a_code_that_explains_the_message_better():
    """FORA-G: what the generator draws, sent once more by the substitute, comes nearer to what was observed."""
    knowledge, _ = victim(count=24)
    attacker = made(replace(SHORT, prior=True), knowledge)
    seen, apart = attacker.read(knowledge.observed), []
    for attacker.search_steps in (0, 40):
        again = attacker.features(attacker.reconstruct(knowledge.observed))
        apart.append(float((attacker.theirs(again) - attacker.theirs(seen)).square().mean()))
    assert apart[1] < 0.9 * apart[0]


@pytest.mark.parametrize("budget", ["quick", "standard", "paper"])
def test_sizes(budget):
    assert FORA.sized(budget).steps == {"quick": 150, "standard": 300, "paper": 40_000}[budget]


def test_a_bar_is_known_for_the_digits_and_not_for_a_prior():
    assert FORA().bar("Digits()", "MnistNet(cut=4)") == ("ssim", 0.75)
    assert FORA(prior=True).bar("Digits()", "MnistNet()") is None and FORA().bar("CIFAR10()", "MnistNet()") is None


def test_the_papers_size_is_the_releases_script():
    paper = FORA.sized("paper")
    assert (paper.mix, paper.penalty, paper.rate, paper.critic_rate, paper.batch) == (0.8, 1000.0, 1e-4, 3e-4, 64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "whole numbers from 1 up"),
        ({"width": 1.5}, "whole numbers from 1 up"),
        ({"batch": 1}, "batch is a whole number from 2 up"),
        ({"mix": 1.2}, "mix is the share of MK-MMD, 0 to 1"),
        ({"rate": 0}, "rate and critic_rate are above 0"),
        ({"joins": 1.2}, "joins is a share of the steps, 0 to 1"),
        ({"penalty": -1}, "penalty is 0 or more"),
        ({"blocks": "lego"}, "blocks is one of vgg, resnet, dense"),
        ({"reader": "tea"}, "reader is one of auto, conv, mlp"),
        ({"knows": "all"}, "knows is one of oblivious, lift, matched"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        FORA(**settings)


def test_an_unknown_budget_is_refused():
    with pytest.raises(ValueError, match="budget is one of quick, standard, paper"):
        FORA.sized("huge")


def test_a_prior_of_what_is_not_an_image_is_refused():
    knowledge, _ = victim()
    with pytest.raises(ValueError, match="a prior draws images"):
        made(replace(SMALL, prior=True), replace(knowledge, aux=torch.zeros(8, 5)))


def test_missing_knowledge_is_named():
    with pytest.raises(ValueError, match=r"needs auxiliary images.*recorded messages.*guard"):
        Knowledge().only(SMALL.needs)


# ---------------------------------------------------------------------------- records and series
@pytest.mark.parametrize(("rows", "cut"), [((5,), (8,)), ((2, 16), (6, 8)), ((2, 16), (12,))])
@pytest.mark.parametrize("signed", [False, True])
def test_a_substitute_for_rows_sends_what_the_client_sends(rows, cut, signed):
    torch.manual_seed(0)
    sent = RowSubstitute(rows, cut, 8, signed)(torch.randn(10, *rows))
    assert tuple(sent.shape) == (10, *cut) and bool((sent < 0).any()) == signed


def test_series_are_read_through_a_substitute():
    """A convolution of one filter that barely mixes: what is sent looks like what it was made of."""
    torch.manual_seed(1)
    walk = torch.randn(240, 1, 16).cumsum(2)
    walk = walk - walk.mean(2, keepdim=True)
    messages = [Message(Kind.FORWARD, 0, 0, {"z": walk[120:] * 0.7 + 0.1})]
    task = Task((1, 16), 2)
    knowledge = Knowledge(aux=walk[:120], observed=messages, guard=KnownGuard(NoGuard(), (1, 16), 0, task))
    attacker = FORA(steps=60, reader_steps=120, reader_width=16, batch=32).attacker(knowledge, 0)
    found = attacker.reconstruct(messages)
    assert found.shape == walk[120:].shape and attacker.remarks()["reader"] == "conv"
    assert float(correlation_either(walk[120:], found).mean()) > 0.7


def test_a_convolution_reads_no_records():
    with pytest.raises(ValueError, match="reader='mlp'"):
        _row_network(FORA(reader="conv"), torch.zeros(4, 6), (5,))
