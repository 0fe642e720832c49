"""Exactly so many units stay, and head, pruner and reader learn from disjoint gradients."""

import pytest
import torch
from torch.nn.functional import interpolate
from toys import TASK, batches, split_and_whole, tiny_plan

from cutlayer.core.message import Kind
from cutlayer.core.seeds import generator
from cutlayer.guards import WCC, Chain, Disco, LightSplit
from cutlayer.guards.disco import TEMPERATURE, kept, soften
from cutlayer.training.plan.shapes import cut_shapes

CUT = (4, 5, 5)


def built(guard, shape=CUT):
    return guard.build(shape, 1, 2, TASK).train()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(torch.get_default_dtype())


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 0.6, 0.99])
def test_exactly_so_many_units_stay_and_they_are_the_best(ratio):
    scores = normal(7, 6, 2, 2)
    mask = kept(scores, ratio)
    dropped = int(24 * ratio)
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert (mask.flatten(1).sum(1) == 24 - dropped).all()
    for row, stays in zip(scores.flatten(1), mask.flatten(1).bool(), strict=True):
        if dropped:
            assert row[stays].min() > row[~stays].max()
    assert (kept(torch.zeros(3, 10, 1, 1), ratio).sum((1, 2, 3)) == 10 - int(10 * ratio)).all(), "equal scores, too"


def test_the_soft_mask_is_one_half_at_the_threshold():
    scores = normal(5, 10, 1, 1)
    soft, stays = soften(scores, 0.6).flatten(1), kept(scores, 0.6).flatten(1).bool()
    rows = scores.flatten(1)
    lowest = torch.where(stays, rows, float("inf")).min(1, keepdim=True).values
    torch.testing.assert_close(soft, torch.sigmoid(30 * (rows - lowest)))
    assert torch.equal(soft >= 0.5, stays)
    assert pytest.approx(1 / 30) == TEMPERATURE


@pytest.mark.parametrize("ratio", [0.5, 0.75])
@pytest.mark.parametrize("patches", [None, 1, 2, 3, 5])
def test_a_unit_leaves_whole_or_not_at_all(patches, ratio):
    """Against torch's nearest interpolation, which divides a side into the same fields."""
    z = normal(6, *CUT) + 10  # no zeros of its own
    module = built(Disco(ratio=ratio, patches=patches, width=4))
    seen = module(z, batches(1)[0]).seen
    side = patches or 1
    fields = kept(module.scores(z), ratio)
    assert fields.shape == (6, 4, side, side)
    expected = z * interpolate(fields, size=(5, 5), mode="nearest")
    assert torch.equal(seen, expected)
    assert (fields.sum((1, 2, 3)) == 4 * side**2 - int(4 * side**2 * ratio)).all()
    assert torch.equal(module.eval()(z, batches(1)[0]).seen, seen), "the same mask at inference"
    assert not torch.equal(fields[0], fields[1:]), "each sample has its own"


def test_scores_see_the_mean_of_their_field():
    module = built(Disco(patches=2, width=4), (4, 5, 7)).scores
    z = normal(3, 4, 5, 7)
    maps = module.look(z)
    pooled = torch.stack(
        [
            torch.stack([maps[:, :, rows, columns].mean((2, 3)) for columns in (slice(0, 4), slice(4, 7))], 2)
            for rows in (slice(0, 3), slice(3, 5))
        ],
        2,
    )
    torch.testing.assert_close(module(z), module.judge(pooled))


def step(guard, answer):
    """(module, gradient of z) after one backward pass in which the server answered `answer`."""
    module, z = built(guard), normal(6, *CUT).requires_grad_()
    seen, penalty, *_ = module(z, batches(1)[0])
    ((seen * answer).sum() + sum(penalty.values())).backward()
    return module, z.grad


@pytest.mark.parametrize("patches", [None, 2])
def test_the_head_follows_the_servers_gradient_alone(patches):
    answer = normal(6, *CUT, seed=1)
    grads = []
    for settings in ({"alpha": 0.0}, {"alpha": 0.7}, {"alpha": 1.0}):
        module, grad = step(Disco(patches=patches, width=4, **settings), answer)
        mask = module.scores.spread(kept(module.scores(normal(6, *CUT)), 0.6))
        assert torch.equal(grad, mask * answer)
        grads.append(grad)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("attribute", [None, "odd"])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_pruner_follows_its_share_of_task_and_reader(alpha, attribute):
    """Against autograd of (1-a) · task - a · mean(min(adv, chance)), where dtask/d(M z) is what the server sent."""
    answer, batch = normal(6, *CUT, seed=1), batches(1)[0]
    guard = Disco(patches=2, attribute=attribute, alpha=alpha, width=4)
    module, _ = step(guard, answer)
    other = built(guard)
    z = normal(6, *CUT)
    scores = other.scores(z)
    soft = soften(scores, guard.ratio)
    mask = interpolate(kept(scores, guard.ratio) + soft - soft.detach(), size=(5, 5), mode="nearest")
    guess = other.reader.adversary(mask * z)
    if attribute is None:
        x = batch.x - batch.x.mean(0)
        losses, chance = (guess - x / x.square().mean().sqrt()).square().mean((1, 2, 3)), 1.0
    else:
        losses, chance = (
            torch.nn.functional.cross_entropy(guess, batch.s["odd"], reduction="none"),
            0.6931471805599453,
        )
    objective = (1 - alpha) * (answer * mask * z).sum() - alpha * losses.clamp_max(chance).mean()
    pruner, reader = list(other.scores.parameters()), list(other.reader.parameters())
    expected = torch.autograd.grad(objective, pruner, retain_graph=True)
    torch.testing.assert_close([weight.grad for weight in module.scores.parameters()], list(expected))
    assert any(grad.abs().max() > 1e-6 for grad in expected)
    # The reader minimises its own loss, whatever alpha is.
    expected = torch.autograd.grad(losses.mean(), reader)
    torch.testing.assert_close([weight.grad for weight in module.reader.parameters()], list(expected))


def test_message_4_is_as_sparse_as_message_1():
    client, _, *_ = split_and_whole(tiny_plan(guard=Disco(ratio=0.5, patches=2, width=4)))
    said, send = [], client.remote._send

    def overhear(message):
        answer = send(message)
        said.append((message, answer))
        return answer

    client.remote._send = overhear
    client.split.train()
    client.split.loss(batches(1)[0], client.remote).backward()
    (forward, _), (backward, answer) = said
    assert (forward.kind, backward.kind) == (Kind.FORWARD, Kind.BACKWARD)
    sent = forward["z"] != 0
    assert 0 < sent.double().mean() < 0.7
    assert not answer["dz"][~sent].any()
    assert answer["dz"][sent].any()


def test_the_server_learns_neither_what_is_hidden_nor_how():
    guard = Disco(ratio=0.8, patches=2, attribute="odd", alpha=0.3, width=4)
    assert guard.public_part() == Disco(ratio=0.8, patches=2)
    assert guard.attributes == ("odd",) and Disco().attributes == ()
    seen = torch.tensor([[[[0.0, 2.0]]]], requires_grad=True)
    (guard.lift((1, 1, 2), 1)(seen) * torch.tensor([5.0, 7.0])).sum().backward()
    assert seen.grad.flatten().tolist() == [0, 7]


def test_attributes_are_needed_for_training_alone():
    module, z = built(Disco(attribute="odd", width=4)), normal(6, *CUT)
    batch = batches(1)[0]
    assert "adversary_accuracy" in (module(z, batch), module.notes)[1]
    blind = type(batch)(batch.x, batch.y)
    assert module.eval()(z, blind).penalty == {}
    with pytest.raises(ValueError, match="does not say 'odd'"):
        module.train()(z, blind)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1}, "ratio is the share of channels pruned"),
        ({"ratio": -0.1}, "ratio is the share of channels pruned"),
        ({"alpha": 1.5}, "alpha is the reader's share"),
        ({"patches": 0}, "patches are the fields a side"),
        ({"patches": 2.0}, "patches are the fields a side"),
        ({"attribute": 5}, "attribute is the name"),
        ({"width": 0}, "width is that of the adversary"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Disco(**settings)


def test_cuts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="maps of 5x5 have at most 5 patches a side"):
        cut_shapes(tiny_plan(guard=Disco(patches=8)), TASK)
    with pytest.raises(ValueError, match="needs a cut of channels x height x width"):
        Disco().out_shape((100,))
    with pytest.raises(ValueError, match="the zeros are gone"):
        Chain(Disco(), LightSplit(ratio=4))
    assert Chain(Disco(width=4), WCC(weight=0.1)).out_shape(CUT) == CUT
