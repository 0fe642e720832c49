"""UnSplit: two guesses that improve each other. The losses against plain loops, many clones against one at a time."""

import pickle

import pytest
import torch
from rotation import and_the_rest
from torch import nn
from toys import GUARDS, TASK, TinyNet, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Knowledge, KnownGuard, UnSplit, base
from cutlayer.attacks.unsplit import Clone, Clones, variation
from cutlayer.audit.judge import Substituting, judge
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import seeded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import Bottleneck1x1, Chain, KAnonymous, LightSplit, NoGuard, Noise
from cutlayer.metrics.images import minmax, ncc
from cutlayer.nets import Whole
from cutlayer.training.plan.plan import Task
from cutlayer.training.protocols import Bypass

FEW = {"rounds": 2, "input_steps": 3, "clone_steps": 3, "rate": 1e-2}
NET, CUT = TinyNet(), (4, 5, 5)


def message(z, step=0):
    return Message(Kind.FORWARD, 0, step, {"z": z})


def told(guard=NoGuard(), net=NET, shape=CUT, task=TASK):  # noqa: B008  specs are frozen
    public = guard.public_part()
    return Knowledge(task=task, net=net, observed=[], guard=KnownGuard(public, shape, 3, task))


def attack(spec, z, guard=NoGuard(), **known):  # noqa: B008
    return spec.attacker(told(guard, **known).only(spec.needs), 0).reconstruct([message(z)])


def sent(count, dtype=torch.float32):
    torch.manual_seed(5)
    with torch.no_grad():
        return NET.head(TASK.shape)(samples(count, 7).x).to(dtype)


def trained(guard, **plan):
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=8, **plan), tiny_parts(), classes=TASK.classes)
    run.train()
    return run


def test_variation_is_the_mean_squared_difference_of_neighbours():
    images = torch.rand(2, 3, 4, 5)
    for image, found in zip(images, variation(images), strict=True):
        down = [(image[c, i + 1, j] - image[c, i, j]) ** 2 for c in range(3) for i in range(3) for j in range(5)]
        across = [(image[c, i, j + 1] - image[c, i, j]) ** 2 for c in range(3) for i in range(4) for j in range(4)]
        torch.testing.assert_close(found, torch.stack(down).mean() + torch.stack(across).mean())


@pytest.mark.parametrize("clones", ["shared", "own"])
def test_its_clones_are_compared_with_the_client_where_it_compares_them(clones):
    """For its own guesses they differ by what `match` says; and in another order each clone is asked for its own."""
    spec = UnSplit(**FEW, clones=clones, stretch=False)
    attacker = spec.attacker(told(LightSplit(ratio=4)).only(spec.needs), 0)
    z = torch.randn(5, 25)
    guesses = attacker.reconstruct([message(z)])
    assert isinstance(attacker, Substituting)
    theirs, own = attacker.read([message(z)]), attacker.features(guesses)
    missed = (own - theirs).square().mean(1) / theirs.square().mean(1)
    assert float(missed.mean()) == pytest.approx(attacker.match, rel=1e-4)
    turned = attacker.features(guesses.flip(0)).flip(0)
    assert torch.allclose(turned, own, atol=1e-6) == (clones == "shared")


def by_hand(spec, target, clone):
    """One image and its clone, as the paper's loop has it, with Adam written out."""
    x = torch.full((1, *TASK.shape), 0.5, dtype=target.dtype)
    weights = list(clone.parameters())
    memory = {id(t): [torch.zeros_like(t), torch.zeros_like(t), torch.zeros_like(t), 0] for t in [x, *weights]}

    def adam(tensor, gradient):
        held = memory[id(tensor)]
        held[3] += 1
        held[0] = 0.9 * held[0] + 0.1 * gradient
        held[1] = 0.999 * held[1] + 0.001 * gradient**2
        held[2] = torch.maximum(held[2], held[1])  # AMSGrad
        scale = (held[2] / (1 - 0.999 ** held[3])).sqrt() + 1e-8
        tensor.data -= spec.rate * held[0] / (1 - 0.9 ** held[3]) / scale

    for _ in range(spec.rounds):
        for _ in range(spec.input_steps):
            x.requires_grad_()
            smooth = (x[..., 1:, :] - x[..., :-1, :]).square().mean() + (x[..., 1:] - x[..., :-1]).square().mean()
            loss = (clone(x) - target).square().mean() + spec.tv * smooth + spec.l2 * x.square().mean()
            (gradient,) = torch.autograd.grad(loss, [x])
            x.requires_grad_(False)
            adam(x, gradient)
            if spec.bounded:
                x.clamp_(0, 1)
        for _ in range(spec.clone_steps):
            gradients = torch.autograd.grad((clone(x) - target).square().mean(), weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                adam(weight, gradient)
    return x


@pytest.mark.parametrize("bounded", [True, False])
def test_an_image_of_its_own_is_the_textbook_loop(bounded):
    spec = UnSplit(**FEW, clones="own", stretch=False, bounded=bounded, l2=0.7, tv=0.2)
    z = sent(3, dtype=torch.float64)
    attacker = spec.attacker(told().only(spec.needs), 0)
    found = attacker.reconstruct([message(z)])
    for row in range(3):
        with seeded(attacker.seed):
            clone = Clone(NET.head(TASK.shape), CUT, CUT).double().eval()
        expected = by_hand(spec, z[row : row + 1], clone).clamp(0, 1)
        torch.testing.assert_close(found[row : row + 1], expected, atol=1e-9, rtol=0)
    assert found.std() > 1e-3


def test_many_images_at_once_are_one_after_the_other():
    spec, z = UnSplit(**FEW, clones="own"), sent(5, dtype=torch.float64)
    together = attack(spec, z)
    alone = torch.cat([attack(spec, row[None]) for row in z])
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)
    # With one clone for all of them they do depend on each other.
    shared = UnSplit(**FEW)
    assert not torch.allclose(attack(shared, z), torch.cat([attack(shared, row[None]) for row in z]), atol=1e-4)


def test_clones_of_their_own_learn_apart():
    torch.manual_seed(0)
    clones = Clones(Clone(NET.head(TASK.shape), CUT, CUT), 3)
    x = samples(3, 1).x
    loss = clones(x).square().flatten(1).mean(1)
    (weights,) = [p for p in clones.parameters if p.dim() == 5]
    (gradient,) = torch.autograd.grad(loss[1], [weights])
    assert gradient[1].abs().sum() > 0 and not gradient[0].any() and not gradient[2].any()


@pytest.mark.parametrize("clones", ["shared", "own"])
def test_batchnorm_needs_no_company(clones):
    # One image has no batch to be normalised by, and a map of one place not even places.
    assert attack(UnSplit(**FEW, clones=clones), sent(1)).shape == (1, *TASK.shape)

    class Point(TinyNet):
        def head(self, shape):
            return nn.Sequential(nn.Conv2d(1, 4, 12), nn.BatchNorm2d(4), nn.ReLU())

    found = attack(UnSplit(**FEW, clones=clones), torch.rand(1, 4, 1, 1), net=Point(), shape=(4, 1, 1))
    assert found.isfinite().all()


def test_it_rebuilds_what_it_was_never_shown():
    run = trained(NoGuard())
    victim = Victim(run, 12)
    spec = UnSplit(rounds=20, input_steps=25, clone_steps=25, rate=1e-2, tv=3.0, l2=0.3)
    row, _ = judge(spec, victim, run.parts, seed=0)
    mean = run.parts.aux.x.mean(0).expand_as(victim.truth)
    assert row["ncc"] > ncc(victim.truth, mean).mean() + 0.1
    assert 0 <= row["match"] < 0.5 and "aux" not in spec.needs and "encode" not in spec.needs


def test_the_copy_of_a_projection_helps():
    # The same steps and messages: only the one who puts the public map into the clone can explain them.
    guard, run = LightSplit(ratio=2), trained(LightSplit(ratio=2))
    forms = UnSplit(rounds=10, input_steps=10, clone_steps=20, rate=1e-2).against(guard, CUT)
    rows = {form.knows: judge(form, Victim(run, 8), run.parts, seed=0)[0] for form in forms}
    assert set(rows) == set(base.FORMS)
    assert max(rows["matched"]["match"], rows["matched+lift"]["match"]) < 0.75 * rows["lift"]["match"]


def test_a_prior_alone_gives_black_and_that_is_no_privacy():
    """The effect behind equal figures at every setting of a guard: nothing of the message is left in the image."""
    z = 1e-3 * torch.randn(4, *CUT)  # next to nothing, and signed: no head with a ReLU sends this
    spec = UnSplit(rounds=10, input_steps=25, clone_steps=5, rate=3e-2, stretch=False)
    assert attack(spec, z).amax() < 0.02
    assert attack(UnSplit(rounds=10, input_steps=25, clone_steps=5, rate=3e-2, stretch=False, l2=0.0), z).mean() > 0.1


def test_stretching_is_the_last_thing_it_does():
    z, plain = sent(4), UnSplit(**FEW, stretch=False)
    torch.testing.assert_close(attack(UnSplit(**FEW), z), minmax(attack(plain, z)))


FORMS = ["shared", "own"]  # of clones


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("guard", "clones"),
    and_the_rest(
        [(guard, FORMS[turn % 2]) for turn, guard in enumerate({type(guard): guard for guard in GUARDS}.values())],
        GUARDS,
        FORMS,
    ),
)
def test_it_runs_against_every_guard_in_every_form(guard, clones):
    run = trained(guard)
    for form in UnSplit(**FEW, clones=clones, most_images=7).against(guard, CUT):
        row, pictures = judge(form, Victim(run, 16), run.parts, seed=0)
        assert row["n"] == 7 and pictures.shape == (7, *TASK.shape)
        assert pictures.min() >= 0 and pictures.max() <= 1 and row["match"] >= 0


@pytest.mark.parametrize("guard", [NoGuard(), LightSplit(ratio=2), Bottleneck1x1(ratio=2)], ids=repr)
def test_it_knows_that_a_bypass_keeps_channels_home(guard):
    run = trained(guard, protocol=Bypass())
    for form in UnSplit(**FEW).against(guard, (2, 5, 5)):
        assert judge(form, Victim(run, 8), run.parts, seed=0)[0]["n"] == 8


def test_a_clone_speaks_in_the_shape_it_must():
    head = NET.head(TASK.shape)
    x = torch.rand(2, *TASK.shape)
    assert Clone(head, CUT, CUT)(x).equal(head(x))
    assert Clone(head, (2, 5, 5), (2, 5, 5))(x).equal(head(x)[:, :2])
    assert Clone(head, CUT, (3, 5, 5))(x).shape == (2, 3, 5, 5)
    assert Clone(head, CUT, (11,))(x).shape == (2, 11)


def test_a_row_of_a_group_is_guessed_as_one_image(double):
    assert [form.knows for form in UnSplit().against(KAnonymous(k=2), CUT)] == [""]
    both = Chain(LightSplit(ratio=4), KAnonymous(k=3))
    assert [form.knows for form in UnSplit().against(both, CUT)] == list(base.FORMS)
    # Fewer rows than a group has members: the copy must not want company. The projection is still in it.
    spec = UnSplit(**FEW, knows="matched", clones="own")
    narrow = torch.randn(2, 25)
    alone = [attack(spec, row[None], both) for row in narrow]
    torch.testing.assert_close(attack(spec, narrow, both), torch.cat(alone), atol=1e-9, rtol=0)
    assert not torch.equal(alone[0], attack(spec, narrow[:1], Chain(LightSplit(ratio=4), Noise(scale=1.0))))


def test_the_judge_scores_as_many_images_as_it_asks_for():
    guard = KAnonymous(k=3)
    run = trained(guard)
    victim = Victim(run, 30)
    short = victim.fewer(10)
    assert len(short.truth) == len(short.y) == 10 and torch.equal(short.truth, victim.truth[:10])
    assert torch.equal(short.seen, victim.seen[:10])  # the same rows stand for the same images
    used = {m.step: m for m in short.messages if m.kind is Kind.FORWARD}
    for sent_back in (m for m in short.messages if m.kind is Kind.BACKWARD):
        assert len(sent_back["du"]) == len(used[sent_back.step]["z"])
    assert victim.fewer(None) is victim.fewer(30) is victim


def test_it_is_reproducible_and_can_be_written_down():
    spec, z = UnSplit(**FEW), sent(4)
    attacker = spec.attacker(told().only(spec.needs), 0)
    again = pickle.loads(pickle.dumps(attacker))
    state = torch.get_rng_state()
    first = attacker.reconstruct([message(z)])
    assert torch.equal(first, attacker.reconstruct([message(z)])) and torch.equal(
        first, again.reconstruct([message(z)])
    )
    assert torch.equal(first, attacker.reconstruct([message(z[:1]), message(z[1:], 1)]))
    assert torch.equal(state, torch.get_rng_state())


def test_it_grows_with_the_budget():
    quick, standard, paper = (UnSplit.sized(budget) for budget in ("quick", "standard", "paper"))
    steps = [spec.rounds * (spec.input_steps + spec.clone_steps) for spec in (quick, standard, paper)]
    assert steps == sorted(steps)
    assert (paper.rounds, paper.input_steps, paper.clone_steps, paper.rate) == (1000, 100, 100, 1e-3), "as published"
    with pytest.raises(ValueError, match="budget is 'quick' or 'standard' or 'paper'"):
        UnSplit.sized("papers")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rounds": 0}, "whole numbers from 1 up"),
        ({"clone_steps": 1.5}, "whole numbers from 1 up"),
        ({"most_images": 0}, "whole numbers from 1 up"),
        ({"rate": 0.0}, "rate is above 0"),
        ({"l2": -1.0}, "tv and l2 are 0 or more"),
        ({"knows": "tea"}, "knows is one of oblivious, lift, matched"),
        ({"clones": "many"}, "clones is one of shared, own"),
    ],
)
def test_wrong_settings_are_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        UnSplit(**wrong)


def test_missing_knowledge_and_inputs_that_are_no_images_are_named():
    with pytest.raises(ValueError, match="the architecture of the client's network"):
        Knowledge(task=TASK, observed=[]).only(UnSplit.needs)
    with pytest.raises(ValueError, match="UnSplit rebuilds images"):
        UnSplit().attacker(told(task=Task((8,), 2)).only(UnSplit.needs), 0)


@pytest.mark.parametrize("clones", ["shared", "own"])
def test_where_the_cut_is_at_the_input_there_is_no_clone_to_guess(clones):
    net = Whole(net=NET)
    images = samples(3).x
    spec = UnSplit(rounds=3, input_steps=100, rate=0.02, tv=0.0, l2=0.0, clones=clones, stretch=False)
    attacker = spec.attacker(told(net=net, shape=tuple(images.shape[1:])), seed=0)
    assert torch.allclose(attacker.reconstruct([message(images)]), images, atol=0.05), "what was sent is the image"
