"""Labels out of gradients: the closed form, the sorting, the naming, and that no guard at the cut is in the way."""

import pickle
from itertools import permutations

import numpy as np
import pytest
import torch
from rotation import and_the_rest
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn.functional import cross_entropy
from toys import GUARDS, TASK, TinyNet, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Knowledge, LabelClustering, TailEnumeration
from cutlayer.attacks.labels import (
    as_it_answered,
    assignment,
    candidates,
    exchanges,
    likeness,
    named,
    spherical_kmeans,
    unit,
)
from cutlayer.audit.judge import judge
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.victim import Victim
from cutlayer.core.message import Kind, Message
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit, NoGuard
from cutlayer.training.plan.plan import Task
from cutlayer.training.protocols import Bypass, Vanilla

BOTH = [LabelClustering(), TailEnumeration(starts=6, steps=60, rate=1e-2, batch=32)]
attacks = pytest.mark.parametrize("attack", BOTH, ids=repr)


def trained(guard=NoGuard(), **plan):  # noqa: B008  specs are frozen
    run = LocalRun(tiny_plan(guard=guard, epochs=2, batch_size=8, **plan), tiny_parts(), classes=TASK.classes)
    run.train()
    return run


def conversation(u, y, tail, batch=20):
    """What a client with this tail sends for features `u` (the body is the identity)."""
    messages = []
    for step, (some, labels) in enumerate(zip(u.split(batch), y.split(batch), strict=True)):
        at = some.clone().requires_grad_()
        (du,) = torch.autograd.grad(cross_entropy(tail(at), labels), [at])
        messages += [Message(Kind.FORWARD, 0, step, {"z": some}), Message(Kind.BACKWARD, 0, step, {"du": du})]
    return messages


class Line(TinyNet):
    def tail(self, shape, classes):
        return nn.Linear(6, classes)


def infer(attack, messages, classes):
    told = Knowledge(task=Task((1, 12, 12), classes), net=Line(), body=nn.Identity(), observed=messages)
    return attack.attacker(told.only(attack.needs), 0).infer(messages)


@pytest.mark.parametrize(
    "tail", [nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))], ids=["linear", "deep"]
)
def test_the_candidates_are_the_gradients_of_each_label(tail):
    u = torch.randn(5, 6)
    found = candidates(tail, u)
    for label in range(4):
        at = u.clone().requires_grad_()
        loss = cross_entropy(tail(at), torch.full((5,), label), reduction="sum")
        torch.testing.assert_close(found[:, label], torch.autograd.grad(loss, [at])[0])


def test_before_a_linear_tail_they_are_known_in_closed_form():
    tail, u = nn.Linear(6, 4), torch.randn(5, 6)
    p = tail(u).softmax(1)
    for label in range(4):
        expected = (p - torch.eye(4)[label]) @ tail.weight
        torch.testing.assert_close(candidates(tail, u)[:, label], expected)


def test_candidates_of_maps_have_the_shape_of_maps():
    tail = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    assert candidates(tail, torch.randn(2, 3, 5, 5)).shape == (2, 4, 3, 5, 5)


def test_the_true_tail_knows_every_label_from_any_sample():
    tail, u, y = nn.Linear(6, 4), torch.randn(30, 6), torch.randint(4, (30,))
    du = torch.cat([m["du"] for m in conversation(u, y, tail) if m.kind is Kind.BACKWARD])
    alike = likeness(tail, u, du)
    assert torch.equal(alike.argmax(1), y)
    torch.testing.assert_close(alike.amax(1), torch.ones(30))  # whatever the size of the batch


@attacks
def test_names_are_all_it_cannot_know(attack):
    """Renaming the classes changes no message, so no attack can tell the names: only the groups."""
    torch.manual_seed(0)
    tail, u = nn.Linear(6, 3), torch.randn(120, 6)
    with torch.no_grad():
        y = tail(2 * u).argmax(1)
    order = torch.tensor([2, 0, 1])
    other = nn.Linear(6, 3)
    with torch.no_grad():
        other.weight[order], other.bias[order] = tail.weight, tail.bias
    messages, renamed = conversation(u, y, tail), conversation(u, order[y], other)
    torch.testing.assert_close(messages[1]["du"], renamed[1]["du"])
    found, chance = named(infer(attack, messages, 3), y)
    assert (found == y).double().mean() > max(0.95, chance + 0.3)


@attacks
def test_two_classes_are_two_directions(attack):
    torch.manual_seed(1)
    tail, u, y = nn.Linear(6, 2), torch.randn(80, 6), torch.randint(2, (80,))  # labels the tail cannot predict
    found, _ = named(infer(attack, conversation(u, y, tail), 2), y)
    assert torch.equal(found, y)


def test_gradients_tell_labels_that_features_do_not():
    torch.manual_seed(1)
    tail, u, y = nn.Linear(6, 2), torch.randn(200, 6), torch.randint(2, (200,))
    messages = conversation(u, y, tail)
    by_features, chance = named(infer(LabelClustering(reads="features"), messages, 2), y)
    by_gradients, _ = named(infer(LabelClustering(), messages, 2), y)
    assert (by_features == y).double().mean() < chance + 0.1 and torch.equal(by_gradients, y)


APART = [guard for guard in GUARDS if not guard.mixes_samples and guard != NoGuard()]
# Every kind of guard; the slower attack meets every fifth. The campaign has every guard with both.
TURNS = [(guard, BOTH[turn % 5 == 0]) for turn, guard in enumerate({type(guard): guard for guard in APART}.values())]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("guard", "attack"), and_the_rest(TURNS, APART, BOTH), ids=repr)
def test_no_guard_at_the_cut_is_in_the_way(attack, guard):
    run = trained(guard)
    row, pictures = judge(attack, Victim(run, 30), run.parts, seed=0)
    assert row["value"] > 0.9 and row["metric"] == "accuracy" and pictures is None
    assert 1 / 3 <= row["chance"] < 0.6 and any("the judge names them" in words for words in row["knows"])


@attacks
@pytest.mark.parametrize("fusion", ["residual", "concat"])
def test_a_bypass_is_not_in_the_way_either(attack, fusion):
    run = trained(protocol=Bypass(fusion=fusion))
    row, _ = judge(attack, Victim(run, 30), run.parts, seed=0)
    assert row["value"] > 0.8


MIXED = [guard for guard in GUARDS if guard.mixes_samples]
# Every kind of guard, attacks in turn; the campaign has every guard with both.
MIXED_IN_TURN = [(guard, BOTH[turn % 2]) for turn, guard in enumerate({type(one): one for one in MIXED}.values())]


@pytest.mark.parametrize(("guard", "attack"), and_the_rest(MIXED_IN_TURN, MIXED, BOTH), ids=repr)
def test_where_samples_share_a_row_they_share_an_answer(guard, attack):
    run = trained(guard)
    row, _ = judge(attack, Victim(run, 30), run.parts, seed=0)
    assert 1 / 3 <= row["value"] <= 1
    if "class" in repr(guard):
        assert row["value"] > 0.8  # groups within a class tell their label as one sample would


def test_where_labels_travel_there_is_nothing_to_infer():
    run = trained(protocol=Vanilla())
    for attack in BOTH:
        with pytest.raises(ValueError, match="there is nothing to infer"):
            judge(attack, Victim(run, 16), run.parts, seed=0)
        assert type(attack).suite("quick", TASK, labels_stay_home=False) == []
        assert type(attack).sized("quick") in type(attack).suite("quick", TASK, labels_stay_home=True)
    loaded = Loaded(samples(60), samples(20, 1), ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"LabelClustering.* leave it out"):
        audit(AuditSpec(tiny_plan(protocol=Vanilla()), [LightSplit(ratio=4)], BOTH), loaded)


def test_gradients_are_paired_with_their_uploads():
    messages = conversation(torch.randn(40, 6), torch.randint(3, (40,)), nn.Linear(6, 3), batch=10)
    shuffled = [messages[i] for i in (0, 2, 3, 1, 4, 6, 7, 5)]
    assert [pair.forward.step for pair in exchanges(shuffled)] == [0, 1, 2, 3]
    assert all(pair.forward.step == pair.backward.step for pair in exchanges(shuffled))
    with pytest.raises(ValueError, match="FORWARD of client 0, step 3 was not answered by a gradient"):
        exchanges(messages[:-1])


def test_kmeans_finds_directions_whatever_their_length():
    draw = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(8, 8, generator=draw, dtype=torch.float64)).Q[:5]
    truth = torch.arange(200) % 5
    rows = axes[truth] + 0.1 * torch.randn(200, 8, generator=draw, dtype=torch.float64)
    rows *= 10.0 ** (-12 * torch.rand(200, 1, generator=draw, dtype=torch.float64))  # a sure client's are tiny
    centres = spherical_kmeans(unit(rows), 5, seed=1, restarts=4)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(5, dtype=torch.float64))
    assert torch.equal(named((unit(rows) @ centres.T).argmax(1), truth)[0], truth)
    assert torch.equal(centres, spherical_kmeans(unit(rows), 5, seed=1, restarts=4))


def test_kmeans_with_fewer_samples_than_clusters():
    assert spherical_kmeans(unit(torch.eye(3)), 7, seed=0, restarts=2).shape == (7, 3)


def test_unit_rows():
    rows = torch.tensor([[3.0, 4.0], [3e-30, 4e-30], [0.0, 0.0]])
    torch.testing.assert_close(unit(rows), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))


def test_the_assignment_is_the_best_there_is():
    draw = np.random.default_rng(0)
    for _ in range(200):
        size = int(draw.integers(1, 9))
        gain = draw.integers(0, int(draw.choice([2, 6, 100])), (size, size))
        found = assignment(gain)
        assert sorted(found) == list(range(size))
        total = gain[np.arange(size), found].sum()
        assert total == gain[linear_sum_assignment(gain, maximize=True)].sum()
        if size <= 5:
            assert total == max(gain[np.arange(size), list(order)].sum() for order in permutations(range(size)))


def test_naming_and_its_chance_level():
    truth = torch.arange(300) % 3
    found, chance = named((truth + 1) % 3, truth)
    assert torch.equal(found, truth)
    assert 1 / 3 < chance < 0.45  # naming random groups by the truth gives a little by itself
    nothing, chance = named(torch.zeros(300, dtype=torch.long), truth)
    assert (nothing == truth).double().mean() == pytest.approx(1 / 3) == pytest.approx(chance)


def test_the_body_is_run_as_it_answered():
    body = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: t.clone() for name, t in body.state_dict().items()}
    z = 5 + torch.randn(40, 3)
    own = as_it_answered(body)
    torch.testing.assert_close(own(z), (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt())
    assert all(torch.equal(t, before[name]) for name, t in body.state_dict().items())


@attacks
def test_an_attacker_can_be_written_down(attack):
    run = trained()
    victim = Victim(run, 16)
    told = Knowledge(task=TASK, net=run.plan.net, body=run.server.body, observed=victim.observed)
    attacker = attack.attacker(told.only(attack.needs), 0)
    again = pickle.loads(pickle.dumps(attacker))
    assert torch.equal(attacker.infer(victim.messages), again.infer(victim.messages))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: LabelClustering(reads="minds"), "reads is one of gradients, features"),
        (lambda: LabelClustering(restarts=0), "restarts is a whole number from 1 up"),
        (lambda: TailEnumeration(learns="Latin"), "learns is one of match, labels"),
        (lambda: TailEnumeration(steps=0), "whole numbers from 1 up"),
        (lambda: TailEnumeration(rate=0.0), "rate is above 0"),
    ],
)
def test_wrong_settings_are_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()
