"""Messages of several epochs: which are one sample's, what they say together, and who is told what."""

import pytest
import torch
from toys import GUARDS, TASK, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder, Linked, usual
from cutlayer.attacks.parts.linking import Link, _halves, shared_rows, taken_apart
from cutlayer.audit.check.toys import toy_parts
from cutlayer.audit.judge import judge
from cutlayer.audit.knowledge import after_training
from cutlayer.audit.passes import links_right, one_pass, order_of, passes_of
from cutlayer.audit.victim import Victim, uploads
from cutlayer.core.seeds import generator, seeded
from cutlayer.core.state import freeze
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import (
    C3,
    SEAL,
    Chain,
    Gaussian,
    KAnonymous,
    LightSplit,
    NoGuard,
    Noise,
    Quantize,
    RandTopK,
    Shredder,
    TopK,
)
from cutlayer.training.batches import as_batch

SHAPE = (4, 5, 5)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ordered(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def grouped(z, k, seed):
    """Means of groups of k, and which is whose."""
    index = torch.empty(len(z), dtype=torch.long)
    index[ordered(len(z), seed)] = torch.arange(len(z)) // k
    rows = torch.zeros(len(z) // k, *z.shape[1:], dtype=z.dtype).index_add_(0, index, z) / k
    return rows, index


# ------------------------------------------------------------------ read together
def test_where_every_sample_has_its_row_they_are_averaged():
    passes = []
    for seed in range(3):
        order = ordered(20, seed)
        passes.append((drawn(20, 2, 3, seed=seed)[order], order.argsort()))
    expected = torch.stack([drawn(20, 2, 3, seed=seed) for seed in range(3)]).mean(0)
    torch.testing.assert_close(taken_apart(passes, 20), expected)


def test_groups_that_change_from_pass_to_pass_come_apart():
    z = drawn(40, 6)
    # Two passes of pairs can never do it: 40 equations, of which one follows from the others.
    assert not torch.allclose(taken_apart([grouped(z, 2, seed) for seed in range(2)], 40), z, atol=1e-3)
    torch.testing.assert_close(taken_apart([grouped(z, 2, seed) for seed in range(5)], 40), z, atol=1e-3, rtol=0)
    torch.testing.assert_close(taken_apart([grouped(z, 4, seed) for seed in range(9)], 40), z, atol=1e-3, rtol=0)


def test_a_pass_may_show_some_of_the_samples_only():
    z = drawn(12, 4)
    first = z[:5] + 1.0
    found = taken_apart([(z, torch.arange(12)), (first, torch.arange(5))], 12)
    assert found.shape == z.shape
    # What is left of the mean of both passes, so that only differences between samples are compared.
    torch.testing.assert_close(found[6:] - found[6], z[6:] - z[6])


def test_shared_rows_are_found_again():
    rows, index = grouped(drawn(12, 2, 2), 3, 0)
    again, which = shared_rows(rows[index])
    assert len(again) == 4
    torch.testing.assert_close(again[which], rows[index])


# ------------------------------------------------------------------ which belong together
def learnt_link(noise, seed=0):
    """Samples of eight dimensions in forty, seen by two heads."""
    heads = drawn(2, 8, 40, seed=100)
    own, theirs = drawn(400, 8, seed=seed), drawn(300, 8, seed=seed + 1)
    order = ordered(300, seed)
    link = Link.learnt(
        own @ heads[0] + noise * drawn(400, 40, seed=seed + 2),
        own @ heads[1] + noise * drawn(400, 40, seed=seed + 3),
        torch.arange(400),
        torch.arange(400) % 2 == 1,
    )
    now = theirs @ heads[0] + noise * drawn(300, 40, seed=seed + 4)
    earlier = (theirs @ heads[1] + noise * drawn(300, 40, seed=seed + 5))[order]
    rows, which = link.follow(now, earlier)
    return earlier[order.argsort()], rows, float((which == order.argsort()).double().mean())


def test_without_noise_every_row_is_found_behind_a_head_that_has_moved():
    truth, rows, right = learnt_link(1e-3)
    assert right == 1
    torch.testing.assert_close(rows, truth, atol=0.1, rtol=0)


def test_the_more_noise_the_fewer_are_found_and_the_less_a_row_is_trusted():
    found = [learnt_link(noise) for noise in (0.5, 2.0, 8.0)]
    right = [one[2] for one in found]
    assert right[0] > 0.9 > right[1] > right[2] and right[1] > 10 / 300
    # Where nobody can tell, what stands for a sample is nearly the mean of all rows: it says nothing wrong.
    spread = [float(rows.std(0).mean() / truth.std(0).mean()) for truth, rows, _ in found]
    assert spread[0] > 0.8 and spread[2] < 0.5


def test_how_far_a_row_may_lie_is_measured_on_samples_that_the_guess_was_not_learnt_from():
    """Guesses at pure noise: those who learnt from it would miss by less than it is, strangers miss by more."""
    wanted = drawn(200, 6, seed=1)
    ((_, missed),) = _halves(drawn(200, 40), wanted, torch.arange(200) % 2 == 1, (1e-6,))
    assert missed.square().mean() > wanted.square().mean()


# ------------------------------------------------------------------ what it is told, and by whom it is tried
@pytest.mark.parametrize(
    ("guard", "anew"),
    [
        (NoGuard(), False), (LightSplit(ratio=4), False), (SEAL(), False), (TopK(share=0.2), False),
        (Quantize(bits=1), False), (Quantize(bits=1, rounding="stochastic"), True), (Noise(scale=0.1), True),
        (Gaussian(scale=0.1), True), (KAnonymous(k=2), True), (C3(ratio=2), True), (Shredder(tensors=3), True),
        (Shredder(tensors=1), False), (RandTopK(share=0.2), True), (RandTopK(share=0.2, alpha=0.0), False),
        (Chain(LightSplit(ratio=4), Noise(scale=0.1)), True), (Chain(LightSplit(ratio=4), TopK(share=0.2)), False),
    ],
    ids=repr,
)  # fmt: skip
def test_it_is_tried_where_a_guard_draws_anew(guard, anew):
    assert guard.draws_anew == anew
    links = [form.link for form in Linked().against(guard, SHAPE)]
    assert links == (["neighbours", "order"] if anew else [""] if guard == NoGuard() else [])
    assert Linked(link="order").against(LightSplit(ratio=4), SHAPE) == [Linked(link="order")]
    assert [type(one) for one in usual([guard], TASK)] == [Decoder, Linked] if anew else [Decoder]


@pytest.mark.parametrize("guard", GUARDS, ids=repr)
def test_what_a_guard_says_of_drawing_anew_is_so(guard):
    """Samples twice, with other companions and other random numbers, through one head."""
    run = LocalRun(tiny_plan(guard=guard, batch_size=8), tiny_parts(), classes=TASK.classes)
    split, samples = run.networks[0].split, run.samples[0]
    freeze(split.eval())
    split.guard.train()
    # Of a head that has learnt nothing activations are small, and signs of a code hang on biases alone.
    split.head.register_forward_hook(lambda module, given, z: 8 * z)
    shown = torch.arange(0, 8, 2)  # every other place of the batch
    with torch.no_grad():
        sent = []
        for seed in range(4):
            pick = 8 + torch.randperm(len(samples) - 8, generator=generator(seed))[:8]
            pick[shown] = shown
            sent.append(split.send(as_batch(samples, pick, seed))[shown])
    assert any(not torch.allclose(sent[0], other, atol=1e-5) for other in sent[1:]) == guard.draws_anew


def test_only_the_ceiling_is_told_the_order():
    assert "order" not in Linked().needs and "order" not in Linked(link="neighbours").needs
    limit = Linked(link="order")
    assert "order" in limit.needs and limit.ceiling(Noise()) and limit.white_box
    assert not Linked(link="neighbours").ceiling(Noise()) and Linked(link="neighbours").white_box


@pytest.mark.parametrize("wrong", [{"link": "guess"}, {"epochs": 0}, {"readers": ("eyes",)}, {"readers": ()}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"link is one of|from 1 up|readers are among"):
        Linked(**wrong)


# ------------------------------------------------------------------ the judge's side
@pytest.fixture(scope="module", params=[NoGuard(), KAnonymous(k=2)], ids=repr)
def victim(request):
    run = LocalRun(tiny_plan(guard=request.param, epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    run.train()
    return Victim(run, 16)


def test_a_pass_has_every_sample_once_in_another_order_and_the_judge_knows_whose_row_is_whose(victim):
    first, second = passes_of(victim)[:2]
    count = sum(len(message["z"]) for message in first.told.messages)
    mixes = victim.run.plan.guard.mixes_samples
    assert sorted(first.rows.unique().tolist()) == list(range(count))
    assert (len(first.rows) == count) != mixes
    assert not torch.equal(first.rows, second.rows)
    if not mixes:
        # One head, no noise: behind BatchNorm a sample's rows are nearer to each other than to those of others.
        rows = [torch.cat([m["z"] for m in one.told.messages])[one.rows].flatten(1) for one in (first, second)]
        assert float((torch.cdist(*rows).argmin(1) == torch.arange(len(rows[0]))).double().mean()) > 0.9
    assert [len(one) for one in order_of(victim)] == [len(first.rows)] * 3 + [16]


class Claims:
    """Says for every row the same number."""

    def __init__(self, *rows):
        self.rows = rows

    def linked(self, messages):
        return [torch.as_tensor(row) for row in self.rows]


def test_links_are_right_where_they_lead_to_a_row_of_the_sample(victim):
    now, count = order_of(victim)[-1], sum(len(m["z"]) for m in uploads(victim.messages))
    truth = []
    for one in reversed(passes_of(victim)):
        rows = torch.zeros(count, dtype=torch.long)
        rows[now] = one.rows[:16]  # where samples share a row, that of one of them
        truth.append(rows)
    assert links_right(Claims(*truth), victim) == 1
    assert links_right(Claims(truth[0], truth[1] - 10_000), victim) == 0.5
    assert links_right(Claims(), victim) is None


def test_a_row_says_how_many_epochs_were_read_and_how_many_links_were_right(victim):
    tiny = {"steps": 20, "hidden": 16, "readers": ("ridge", "mlp"), "epochs": 2}
    row, pictures = judge(Linked(link="neighbours", **tiny), victim, victim.run.parts, 0)
    assert row["linked_by"] == "neighbours" and row["epochs"] == 2 and 1 <= row["together"] <= 3
    assert row["links_right"] is None if row["together"] == 1 else 0 <= row["links_right"] <= 1
    limit, pictures = judge(Linked(link="order", **tiny), victim, victim.run.parts, 0)
    assert limit["ceiling"] and limit["linked_by"] == "order" and "links_right" not in limit
    assert len(pictures) == 16


def test_who_knows_the_order_tells_samples_apart_that_share_a_row():
    run = LocalRun(
        tiny_plan(guard=KAnonymous(k=2, grouping="random"), epochs=1, batch_size=8), toy_parts(), classes=3
    )
    run.train()
    told = Victim(run, 16)
    told.passes = [one_pass(run, number, 16) for number in range(8)]
    few = {"steps": 5, "hidden": 8, "readers": ("ridge",)}
    alone, together = (judge(attack, told, run.parts, 0)[0] for attack in (
        Decoder(**few), Linked(link="order", epochs=8, **few),
    ))  # fmt: skip
    assert together["mse"] < 0.8 * alone["mse"]


def test_it_holds_no_order_that_it_was_not_told(victim):
    attack = Linked(link="neighbours", steps=5, hidden=8, epochs=2, readers=("ridge",))
    with seeded(0):
        attacker = attack.attacker(after_training(victim, victim.run.parts).only(attack.needs), 0)
    assert attacker.order is None
