"""Laws that hold for every rule. A new rule adds one line to RULES."""

import io
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn

from cutlayer.audit.check import rules as laws
from cutlayer.core.spec import spec
from cutlayer.rules import (
    DiLoCo,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMuon,
    FedProx,
    FedYogi,
    Krum,
    Latest,
    Median,
    Rollback,
    Rule,
    Scaffold,
    TrimmedMean,
    Update,
    sound,
)
from cutlayer.training.laws import Skipped, its_text_is_itself
from cutlayer.training.laws import toy_state as state

RELAYS = [Latest()]
AVERAGES = [
    FedAvg(),
    FedAvg(lr=0.5),
    FedAvgM(),
    FedAvgM(lr=1.0, momentum=0.0),
    FedAdagrad(lr=0.5),
    FedAdam(lr=0.1),
    FedYogi(lr=0.1),
    DiLoCo(lr=0.3),
    FedMuon(lr=0.3),
    FedMuon(lr=0.6, scale="rms", polish=True, exclude=("b",)),
    FedMuon(lr=0.3, rest="adam"),
    FedProx(mu=0.1),
]
# Samples do not count.
ONE_EACH = [Median(), TrimmedMean(share=0.2), Krum(), Krum(bad=1, keep=2), Rollback(), Scaffold()]
MERGING = AVERAGES + ONE_EACH
RULES = RELAYS + MERGING
all_rules = pytest.mark.parametrize("rule", RULES, ids=repr)
merging = pytest.mark.parametrize("rule", MERGING, ids=repr)


def updates(*seeds, dtype=torch.float32):
    return [Update(state(seed, dtype), 3 + 2 * seed) for seed in seeds]


def weights(found):
    return {name: tensor for name, tensor in found.items() if name.startswith(("net.", "stat."))}


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, **tolerance)


# Those of `cutlayer check`, which holds outsiders to less: single precision, and rounding where nobody moved.
SINGLE, DOUBLE, HALF = torch.float32, torch.float64, torch.bfloat16
LAWS = {
    "text": its_text_is_itself,
    "alike": laws.alike_comes_out,
    "new tensors": laws.writes_into_nothing,
    "no updates": laws.nothing_comes_nothing_changes,
    "nobody moved": partial(laws.where_nobody_moved_nothing_does, most=0.0),
    **{f"names, {dtype}": partial(laws.keeps_names_and_shapes, dtype=dtype) for dtype in (SINGLE, DOUBLE, HALF)},
    "order": partial(laws.order_does_not_matter, most=1e-6),
    "order, double": partial(laws.order_does_not_matter, dtype=DOUBLE, most=1e-12),
}


@all_rules
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_it_keeps_the_laws_that_outsiders_are_held_to(rule, law):
    with suppress(Skipped):
        law(rule)


@pytest.mark.parametrize("rule", AVERAGES, ids=repr)
def test_statistics_are_averaged_by_samples_and_never_optimised(rule):
    now, came = state(0), updates(1, 2, 6)
    for _ in range(3):  # a memory of past rounds must not push them on
        now = rule(now, came)
        total = sum(update.samples for update in came)
        mean = sum(update.state["stat.mean"].double() * update.samples / total for update in came)
        torch.testing.assert_close(now["stat.mean"], mean.float())
        count = sum(int(update.state["stat.count"]) * update.samples for update in came) / total
        assert int(now["stat.count"]) == round(count) and now["stat.count"].dtype == torch.int64
    assert not any("stat" in name or "mean" in name or "count" in name for name in now if name.startswith("rule."))


@merging
def test_counters_are_rounded_and_not_cut_off(rule):
    counts = [Update({**state(0), "stat.count": torch.tensor(count)}, 5) for count in (7, 8, 8, 8, 8)]
    assert int(rule(state(0), counts)["stat.count"]) == 8


@merging
def test_what_is_true_everywhere_stays_true(rule):
    """Guards keep whether they have begun among their statistics."""
    came = [Update({**update.state, "stat.begun": torch.tensor(True)}, 5) for update in updates(1, 2, 3, 4, 5)]
    for begun in (True, False):
        now = {**state(0), "stat.begun": torch.tensor(begun)}
        found = [rule(now, came)]
        if (running := rule.running(now)) is not None:
            for update in came:
                running.add(update)
            found.append(running.merged())
        for after in found:
            assert after["stat.begun"].dtype is torch.bool and after["stat.begun"]


@merging
def test_half_precision_weights_have_a_memory_of_single_precision(rule):
    after = rule(state(0, torch.bfloat16), updates(1, 2, 3, dtype=torch.bfloat16))
    assert {t.dtype for name, t in after.items() if name.startswith("rule.")} <= {torch.float32}


@pytest.mark.parametrize("rule", AVERAGES, ids=repr)
def test_weights_by_sample_counts_matter(rule):
    one, other = state(1), state(2)
    few = rule(state(0), [Update(one, 1), Update(other, 9)])
    many = rule(state(0), [Update(one, 9), Update(other, 1)])
    assert not torch.allclose(few["net.w"], many["net.w"], atol=1e-4)
    doubled = rule(state(0), [Update(one, 9), Update(other, 1), Update(one, 9), Update(other, 1)])
    same(doubled, many, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ONE_EACH, ids=repr)
def test_where_every_client_counts_once_a_claim_of_many_samples_changes_nothing(rule):
    came = updates(1, 2, 3, 4, 5)
    same(rule(state(0), [Update(came[0].state, 10**9), *came[1:]]), rule(state(0), came), rtol=0, atol=0)


@merging
def test_what_cannot_be_merged_is_refused(rule):
    with pytest.raises(ValueError, match="no samples"):
        rule(state(0), [Update(state(1), 0), Update(state(2), 0)])
    with pytest.raises(ValueError, match="give them as `current`"):
        rule({}, updates(1, 2))
    with pytest.raises(ValueError, match=r"net\.b: let `sound`"):
        rule(state(0), [Update({**state(1), "net.b": torch.zeros(1)}, 5)])


@merging
def test_optimizers_of_clients_are_left_behind(rule):
    came = [Update({**state(seed), "optimizer.0.momentum": torch.ones(3, 2)}, 5) for seed in (1, 2, 3)]
    assert not any(name.startswith("optimizer.") for name in rule(state(0), came))


# ------------------------------------------------------------------- whole rounds
class Client(NamedTuple):
    """½ ‖w − target‖² · curvature, seen through noiseless gradients."""

    target: torch.Tensor
    curvature: torch.Tensor
    correction: object


def clients(rule, count=5, spread=0.3):
    draw = torch.Generator().manual_seed(7)
    return [
        Client(
            1 + spread * torch.randn(4, 3, generator=draw, dtype=torch.float64),
            0.5 + torch.rand(4, 3, generator=draw, dtype=torch.float64),
            rule.correction(),
        )
        for _ in range(count)
    ]


def local(client, order, steps=3, lr=0.1):
    """A client's turn: plain SGD from what the order brings, as an engine would have it done."""
    parameters = {"w": nn.Parameter(order["net.w"].clone())}
    if client.correction:
        client.correction.start(parameters, order)
    for _ in range(steps):
        w = parameters["w"]
        w.grad = client.curvature * (w.detach() - client.target)
        if client.correction:
            client.correction.adjust(parameters)
        w.data -= lr * w.grad
    brought = client.correction.brought(parameters, steps, lr) if client.correction else {}
    return Update({"net.w": parameters["w"].detach(), **brought}, 10)


def rounds(rule, now, party, count):
    for _ in range(count):
        order = {name: t for name, t in now.items() if name.startswith(rule.travels)}
        came, rejected = sound(now, [local(client, order) for client in party])
        assert not rejected
        now = rule(now, came)
    return now


def loss(now, party):
    return sum(float((c.curvature * (now["net.w"] - c.target).square()).sum()) / 2 for c in party) / len(party)


START = {"net.w": torch.linspace(-4, 4, 12, dtype=torch.float64).view(4, 3)}


@all_rules
def test_it_descends_on_a_convex_quadratic(rule):
    party = clients(rule)
    lowest = loss({"net.w": sum(c.curvature * c.target for c in party) / sum(c.curvature for c in party)}, party)
    begin, after = loss(START, party) - lowest, []
    now = START
    for _ in range(8):
        now = rounds(rule, now, party, 10)
        after.append(loss(now, party) - lowest)
    assert after[0] < 0.9 * begin
    assert after[-1] < 0.05 * begin


@all_rules
def test_a_state_that_was_saved_goes_on_as_if_it_had_not_been(rule):
    party, again = clients(rule), clients(rule)
    straight = rounds(rule, START, party, 6)
    half = rounds(rule, START, again, 3)
    file = io.BytesIO()
    torch.save((half, [c.correction.tensors() if c.correction else {} for c in again]), file)
    file.seek(0)
    half, own = torch.load(file)
    reborn: Rule = spec(repr(rule))
    fresh = clients(reborn)
    for client, tensors in zip(fresh, own, strict=True):
        if client.correction:
            client.correction.load(tensors)
    same(rounds(reborn, half, fresh, 3), straight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rule", "copies"),
    [
        (Latest(), 0),
        (FedAvg(), 0),
        (FedAvgM(), 1),
        (FedAvgM(momentum=0.0), 0),
        (FedAdagrad(), 1),
        (FedAdagrad(beta1=0.9), 2),
        (FedAdam(), 2),
        (FedYogi(), 2),
        (DiLoCo(), 1),
        (FedMuon(), 1),
        (FedProx(), 0),
        (Median(), 0),
        (TrimmedMean(), 0),
        (Krum(), 0),
        (Scaffold(), 1),
    ],
    ids=lambda value: repr(value),
)
def test_what_a_rule_remembers_takes_so_many_copies_of_the_parameters(rule, copies):
    now = rounds(rule, START, clients(rule), 2)
    assert rule.memory(now) == copies * START["net.w"].numel() * 8
    assert rule.memory(START) == 0


@all_rules
def test_a_client_is_brought_nothing_that_is_not_the_rules_own(rule):
    """Whoever merges is the client's adversary too: what an order brings beside the weights must be this rule's."""
    own = {name: t for name, t in state(1).items() if name.startswith(rule.travels)}
    rule.refuse_unfit_state(own)
    like = {"control.w": state(1)["net.w"]}
    if "control." in rule.travels:
        rule.refuse_unfit_state(own | like)
        like = {"control.w": state(1)["net.w"][:1]}
    for strange in (like, {"control.unknown": torch.zeros(3)}):
        with pytest.raises(ValueError, match="nothing of this rule's"):
            rule.refuse_unfit_state(own | strange)
