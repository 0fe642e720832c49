"""The privacy ledger: its accountant against others, every refusal with its reason, and runs that show why."""

import json
import sys
import warnings
from dataclasses import dataclass, replace
from math import exp

import pytest
import torch
from masked import TEXTS, MaskedNet
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.guard import Guarded, GuardModule
from cutlayer.core.message import Kind
from cutlayer.data.base import Parts
from cutlayer.data.digits import Digits
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import (
    DPSGD,
    WCC,
    Bottleneck1x1,
    Chain,
    Clip,
    Gaussian,
    KAnonymous,
    Laplace,
    LightSplit,
    Noise,
    RandTopK,
    Shredder,
)
from cutlayer.guards.base import Guard, Release
from cutlayer.nets import SimpleCNN
from cutlayer.training import Pretrained
from cutlayer.training.facts.privacy import Spent, epsilon_of, epsilon_of_one, lines, privacy, sentence
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

GROUP = TinyNet(norm="group")
NOISED = Chain(Clip(norm=1.0), Gaussian(epsilon=8))
FROZEN = tiny_plan(net=GROUP, guard=NOISED, frozen_parts=("head",), epochs=5)
WEIGHTS = tiny_plan(net=GROUP, guard=DPSGD(noise=4.0), frozen_parts=("body",), epochs=5)


def analytic(mu, delta):
    """ε of a Gaussian mechanism with μ = sensitivity over scale, by scipy."""

    def excess(epsilon):
        return norm.cdf(-epsilon / mu + mu / 2) - exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta

    return brentq(excess, 0, 500)


# ------------------------------------------------------------------ the accountant
def test_a_hundred_releases_as_three_accountants_see_them():
    """Multiplier 6, δ = 1e-5: privacy loss distributions 8.004, μ = √100/6 in closed form the same, Rényi 8.603."""
    from opacus.accountants import RDPAccountant

    ours = epsilon_of([Spent(Release("gaussian", 6.0), 100)], 1e-5)
    assert ours == pytest.approx(8.004, abs=1e-3)
    assert ours == pytest.approx(analytic(10 / 6, 1e-5), rel=1e-6)
    accountant = RDPAccountant()
    accountant.history = [(6.0, 1.0, 100)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = accountant.get_epsilon(1e-5)
    assert theirs == pytest.approx(8.603, abs=0.01)
    assert ours <= theirs <= 1.1 * ours


@pytest.mark.parametrize("multiplier", [0.6, 2.0, 20.0])
@pytest.mark.parametrize("times", [1, 30])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_gaussian_releases_add_up_as_the_formula_says(multiplier, times, delta):
    ours = epsilon_of([Spent(Release("gaussian", multiplier), times)], delta)
    assert ours == pytest.approx(analytic(times**0.5 / multiplier, delta), rel=1e-3, abs=1e-6)


def test_two_kinds_of_releases_add_up():
    both = epsilon_of([Spent(Release("gaussian", 2.0), 5), Spent(Release("gaussian", 3.0), 5)], 1e-5)
    assert both == pytest.approx(analytic((5 / 4 + 5 / 9) ** 0.5, 1e-5), rel=1e-4)


def test_laplace_releases_cost_at_most_their_sum():
    assert epsilon_of_one(Release("laplace", 0.5), 1e-5) == 2.0
    assert epsilon_of([Spent(Release("laplace", 0.5), 1)], 1e-5) == pytest.approx(2.0, rel=1e-3)
    many = epsilon_of([Spent(Release("laplace", 10.0), 100)], 1e-5)
    assert 3 < many < 10, "far below 100 · 0.1"
    pure = epsilon_of([Spent(Release("laplace", 0.05), 20)], 1e-5)
    assert pure == pytest.approx(400, rel=0.02), "and never above"


def test_an_epsilon_of_thousands_is_still_found_in_a_moment():
    ours = epsilon_of([Spent(Release("gaussian", 0.05), 100)], 1e-5)
    assert ours == pytest.approx(20_852, rel=1e-3)


def test_nothing_released_costs_nothing():
    assert epsilon_of([], 1e-5) == 0 and epsilon_of([Spent(Release("gaussian", 1.0), 0)], 1e-5) == 0
    assert privacy(replace(FROZEN, epochs=0), TASK)["epsilon"]["total"] == 0


# ------------------------------------------------------------------ what leaves
@pytest.mark.parametrize("protocol", [Vanilla(), UShaped(), Bypass()], ids=repr)
def test_noise_behind_a_frozen_head_is_claimed_for_the_whole_run(protocol):
    data = privacy(replace(FROZEN, protocol=protocol), TASK)
    assert data["epsilon"]["release"] == pytest.approx(8.0)
    mu = 1 / data["epsilon"]["multiplier"]
    assert data["epsilon"]["total"] == pytest.approx(analytic(5**0.5 * mu, 1e-5), rel=1e-4)
    assert data["epsilon"]["delta"] == 1e-5 and data["why_no_epsilon"] is None
    uncovered = "labels, which travel" if protocol == Vanilla() else "message 3 (dL/du)"
    assert uncovered in data["not_covered"][0]
    assert json.loads(json.dumps(data)) == data


def test_the_delta_that_was_asked_for_is_the_one_that_is_used():
    guard = Chain(Clip(), Gaussian(epsilon=2, delta=1e-7))
    price = privacy(replace(FROZEN, guard=guard), TASK)["epsilon"]
    assert price["delta"] == 1e-7 and price["release"] == pytest.approx(2.0)
    assert privacy(replace(FROZEN, guard=guard), TASK, delta=1e-3)["epsilon"]["release"] < 2
    with pytest.raises(ValueError, match="delta is a probability"):
        privacy(FROZEN, TASK, delta=0.0)


def test_a_scale_has_an_epsilon_too_once_rows_are_clipped():
    data = privacy(replace(FROZEN, guard=Chain(Clip(norm=0.5), Gaussian(scale=3.0))), TASK)
    assert data["epsilon"]["multiplier"] == 3.0


def test_laplace_noise_is_pure_for_one_release():
    data = privacy(replace(FROZEN, guard=Chain(Clip(p=1), Laplace(epsilon=2))), TASK)
    assert data["epsilon"]["release"] == pytest.approx(2.0)
    assert 2 < data["epsilon"]["total"] <= 10.001


@dataclass(frozen=True, repr=False)
class Centred(TinyNet):
    """Subtracts the batch's mean by hand: no BatchNorm to be found, and yet every sample moves every row."""

    def head(self, shape):
        return nn.Sequential(super().head(shape), Centre())


class Centre(nn.Module):
    def forward(self, z):
        return z - z.mean(0, keepdim=True)


BATCH = TinyNet()
REFUSED = {
    "no noise": (replace(FROZEN, guard=Clip()), "no noise is added to what leaves"),
    "learned noise": (replace(FROZEN, guard=Shredder(tensors=3)), "each time, and no noise of a known scale"),
    "drawn": (replace(FROZEN, guard=RandTopK(share=0.2)), "each time, and no noise of a known scale"),
    "baseline": (replace(FROZEN, guard=Noise()), "Noise is a baseline without a claim"),
    "no clip": (replace(FROZEN, guard=Gaussian(scale=1.0)), "no row is bounded: put Clip(norm=...) before the noise"),
    "L2 for Laplace": (replace(FROZEN, guard=Chain(Clip(), Laplace(scale=1.0))), "write Clip(norm=..., p=1)"),
    "MDAV": (replace(FROZEN, guard=Chain(Clip(), KAnonymous(k=2), Gaussian(scale=1.0))), "depend on the data"),
    "mixed first": (
        replace(FROZEN, guard=Chain(KAnonymous(k=2), Clip(), Gaussian(scale=1.0))),
        "before the guard that mixes them",
    ),
    "BatchNorm": (replace(FROZEN, net=BATCH), "the head has BatchNorm2d, which normalises by the batch"),
    "BatchNorm, training": (replace(FROZEN, net=BATCH, frozen_parts=()), "take the network with norm='group'"),
    "mixes by hand": (replace(FROZEN, net=Centred(norm="group")), "the head lets one sample move the rows of others"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_without_its_conditions_nothing_is_claimed_and_the_reason_is_said(name):
    plan, words = REFUSED[name]
    data = privacy(plan, TASK)
    assert data["epsilon"] is None and words in data["why_no_epsilon"]
    assert "No ε for what leaves" in sentence(data)


def test_a_head_that_learns_leaves_a_claim_for_one_message_only():
    data = privacy(replace(FROZEN, frozen_parts=()), TASK)
    assert data["epsilon"]["release"] == pytest.approx(8.0) and data["epsilon"]["total"] is None
    assert (
        "the head learns from the records" in data["why_no_epsilon"] and "freeze the head" in data["why_no_epsilon"]
    )
    assert "for one message, given the head" in sentence(data)


def test_a_guard_that_learns_does_the_same():
    data = privacy(replace(FROZEN, guard=Chain(Bottleneck1x1(ratio=2), Clip(), Gaussian(epsilon=8))), TASK)
    assert data["epsilon"]["total"] is None and "the guard learns" in data["why_no_epsilon"]


class _Normalise(GuardModule):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4, affine=False)

    def forward(self, z, batch):
        return Guarded(self.norm(z))


class Normalise(Guard):
    """A guard that does not say that it mixes samples."""

    def build(self, shape, public, private, task=None):
        return _Normalise()


def test_a_guard_with_batchnorm_is_found_even_if_it_keeps_quiet():
    data = privacy(replace(FROZEN, guard=Chain(Normalise(), Clip(), Gaussian(epsilon=8))), TASK)
    assert data["epsilon"] is None and "the guard has BatchNorm2d" in data["why_no_epsilon"]


def test_a_head_from_a_run_on_the_same_records_is_no_frozen_head():
    data = privacy(FROZEN, TASK, fitted=True)
    assert data["epsilon"]["total"] is None and "in an earlier run" in data["why_no_epsilon"]


def test_random_groups_are_covered():
    guard = Chain(Clip(), KAnonymous(k=3, grouping="random"), Gaussian(epsilon=8))
    assert privacy(replace(FROZEN, guard=guard), TASK)["epsilon"]["release"] == pytest.approx(8.0)


def test_what_is_not_covered_is_named():
    data = privacy(replace(FROZEN, clients=3, guarded_clients=2, patience=2), TASK)
    said = "; ".join(data["not_covered"])
    for words in ("message 3", "handed on from client to client", "1 client(s) that send without", "training stops"):
        assert words in said
    assert "handed on" not in "; ".join(
        privacy(replace(FROZEN, clients=3, shared_client_network=False), TASK)["not_covered"]
    )
    assert any(
        "weights in own.pt" in text for text in privacy(replace(FROZEN, start=Pretrained("own.pt")), TASK)["assumes"]
    )


@pytest.mark.parametrize(
    ("changes", "times"),
    [({}, 5), ({"val_share": 0.0}, 0), ({"clients": 3}, 5), ({"clients": 3, "shared_client_network": False}, 15)],
)
def test_validation_is_prediction_and_is_counted(changes, times):
    """However the head came about: a record that is only predicted taught it nothing."""
    data = privacy(replace(FROZEN, net=BATCH, frozen_parts=(), **changes), TASK)
    assert data["epsilon"] is None
    assert data["inference"]["release"] == pytest.approx(8.0)
    assert data["inference"]["validation_releases"] == times
    expected = analytic(times**0.5 / 0.6002290722, 1e-5) if times else 0.0
    assert data["inference"]["validation_total"] == pytest.approx(expected, rel=1e-4)


class Resting(Gaussian):
    """Noise that is left out in service."""

    rests_in_service = True


def test_noise_that_rests_in_service_prices_no_prediction():
    data = privacy(replace(FROZEN, guard=Chain(Clip(norm=1.0), Resting(epsilon=8.0))), TASK)
    assert data["epsilon"] is not None and data["inference"] is None
    assert any("in service the noise rests" in one for one in data["not_covered"])
    behind = privacy(replace(FROZEN, guard=Chain(Clip(norm=1.0), Gaussian(epsilon=8.0), RandTopK(share=0.5))), TASK)
    assert behind["inference"] is not None


def test_unguarded_clients_predict_validation_records_in_the_clear():
    assert privacy(replace(FROZEN, clients=2, guarded_clients=1), TASK)["inference"]["validation_total"] is None
    assert privacy(replace(FROZEN, guard=Clip()), TASK)["inference"] is None


def test_without_the_accountant_the_total_is_missing_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for plan, price, why in ((FROZEN, "epsilon", "why_no_epsilon"), (WEIGHTS, "weights", "why_no_weights")):
        data = privacy(plan, TASK)
        assert data[price]["total"] is None and data[price]["release"] > 0
        assert "pip install 'cutlayer[dp]'" in data[why] and "cutlayer[dp]" in sentence(data)


# ------------------------------------------------------------------ the weights
def test_dpsgd_is_claimed_for_the_weights_and_for_them_alone():
    data = privacy(WEIGHTS, TASK)
    assert data["weights"]["multiplier"] == 2.0, "a replaced record moves the sum by 2 · clip"
    assert data["weights"]["total"] == pytest.approx(analytic(5**0.5 / 2, 1e-5), rel=1e-4)
    assert data["epsilon"] is None and "no noise is added to what leaves" in data["why_no_epsilon"]
    assert "everything that leaves" in data["not_covered"][0]
    assert any("honest server" in text for text in data["assumes"])
    assert "The client's weights, over 5 epochs" in sentence(data)


WEIGHTS_REFUSED = {
    "no noise": (replace(WEIGHTS, guard=DPSGD(noise=0.0)), "adds no noise"),
    "BatchNorm in a frozen head": (
        replace(WEIGHTS, net=BATCH, frozen_parts=("head", "body")),
        "the head has BatchNorm2d",
    ),
    "WCC": (replace(WEIGHTS, guard=Chain(WCC(weight=0.1), DPSGD())), "may let one sample change the gradients"),
    "groups": (replace(WEIGHTS, guard=Chain(KAnonymous(k=2), DPSGD())), "may let one sample change the gradients"),
    "lift with BatchNorm": (
        replace(WEIGHTS, guard=Chain(LightSplit(ratio=4, hidden=8), DPSGD())),
        "the body has BatchNorm1d",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS_REFUSED)
def test_without_its_conditions_nothing_is_claimed_of_the_weights(name):
    plan, words = WEIGHTS_REFUSED[name]
    data = privacy(plan, TASK)
    assert data["weights"] is None and words in data["why_no_weights"]
    assert "No ε for the client's weights" in sentence(data)


def test_a_body_that_learns_leaves_a_claim_for_one_step_only():
    data = privacy(replace(WEIGHTS, frozen_parts=()), TASK)
    assert data["weights"]["total"] is None and "freeze the body" in data["why_no_weights"]
    assert "for one step" in sentence(data)


def test_noise_and_dpsgd_together_cover_a_head_that_learns():
    guard = Chain(Clip(), Gaussian(epsilon=2), DPSGD(noise=8.0))
    data = privacy(replace(WEIGHTS, guard=guard), TASK)
    one, two = data["epsilon"]["multiplier"], data["weights"]["multiplier"]
    assert two == 4.0 and data["why_no_epsilon"] is None
    assert data["epsilon"]["total"] == pytest.approx(analytic((5 / one**2 + 5 / two**2) ** 0.5, 1e-5), rel=1e-4)
    assert "What leaves and the client's weights" in sentence(data)
    assert privacy(replace(WEIGHTS, guard=guard, frozen_parts=()), TASK)["epsilon"]["total"] is None


# ------------------------------------------------------------------ neighbouring runs: the conditions are needed
def neighbours(plan):
    """Messages 1 and the client's gradients of two runs that differ in one record, everything else being equal."""
    one = tiny_parts(24)
    x = one.private.x.clone()
    x[5] = 1 - x[5]
    private = replace(one.private, x=x)
    heard, grads = [], []
    for parts in (one, Parts(private, one.val, one.aux, one.test)):
        messages, steps = [], []
        run = LocalRun(replace(plan, batch_size=8, epochs=2, val_share=0.0), parts, classes=TASK.classes)
        client, handle = run.networks[0], run.networks[0].remote._send

        def hear(message, messages=messages, handle=handle):
            messages.append(message)
            return handle(message)

        def see(optimizer, args, kwargs, steps=steps, client=client):
            steps.append(torch.cat([p.grad.flatten() for p in client.split.parameters() if p.grad is not None]))

        client.remote._send = hear
        client.optimizer.register_step_pre_hook(see)
        run.train()
        heard.append(torch.stack([m["z"].flatten(1) for m in messages if m.kind is Kind.FORWARD]))
        grads.append(steps)
    return heard, grads


def rows_moved(plan):
    """For every epoch: how many rows differ between the two runs, and how far they are apart together. No noise: it
    would differ wherever what it hides does."""
    (one, other), _ = neighbours(plan)
    apart = (one - other).norm(dim=2).reshape(2, -1)  # epochs x rows
    return [(int((epoch > 0).sum()), float(epoch.norm())) for epoch in apart]


def test_behind_a_frozen_head_a_record_moves_one_row_an_epoch_by_what_the_clip_allows():
    for rows, far in rows_moved(replace(FROZEN, guard=Clip(norm=0.1))):
        assert rows == 1 and 0 < far <= 0.2


@pytest.mark.parametrize(
    "changes",
    [{"frozen_parts": ()}, {"net": BATCH}, {"net": Centred(norm="group")}],
    ids=["learns", "BatchNorm", "by hand"],
)
def test_where_the_ledger_refuses_a_record_does_move_other_rows(changes):
    assert max(rows for rows, _ in rows_moved(replace(FROZEN, guard=Clip(norm=0.1), **changes))) > 1
    ledger = privacy(replace(FROZEN, **changes), TASK)["epsilon"]
    assert ledger is None or ledger["total"] is None


@pytest.mark.parametrize("frozen", [("body",), ()], ids=str)
def test_where_the_body_learns_a_record_moves_gradients_of_batches_it_is_not_in(frozen):
    """The client itself stands still here (its rate is next to 0), so what moves came through the body."""
    still = SGD(lr=1e-30, momentum=0.0)
    guard = DPSGD(clip=1e9, noise=0.0)
    _, (one, other) = neighbours(replace(WEIGHTS, guard=guard, frozen_parts=frozen, client_optimizer=still))
    moved = sum(bool((a - b).norm() > 1e-6 * a.norm()) for a, b in zip(one, other, strict=True))
    assert len(one) == 6
    assert moved == 2 if frozen else moved > 2, "once an epoch, or everywhere after the first time"
    assert (privacy(replace(WEIGHTS, frozen_parts=frozen), TASK)["weights"]["total"] is None) == (not frozen)


# ------------------------------------------------------------------ where a person sees it
def test_a_run_writes_its_ledger_and_lines_are_short(tmp_path):
    plan = Plan(
        data=Digits(limit=120), net=SimpleCNN(), guard=NOISED, frozen_parts=("head",), epochs=1, batch_size=40
    )
    result = start.train(plan, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["privacy"] == result["privacy"]
    assert result["privacy"]["epsilon"]["total"] == pytest.approx(8.0, rel=1e-3)
    shown = lines(result["privacy"])
    assert shown[0].startswith("may be claimed: Gaussian(epsilon=8): Gaussian noise of standard deviation ")
    assert shown[1].startswith("what leaves, over 1 epoch: ε = 8.00, δ = 1e-05")
    assert shown[2] == "each prediction costs ε = 8.00 for what is predicted"
    assert shown[3].startswith("not covered: message 3")


def test_an_open_cut_says_so_in_two_lines():
    assert lines(privacy(tiny_plan(), TASK)) == [
        "may be claimed: nothing",
        "no ε for what leaves: no noise is added to what leaves",
    ]


def test_the_ledger_reads_no_files_and_draws_nothing():
    state = torch.get_rng_state()
    privacy(replace(FROZEN, start=Pretrained("not-there.safetensors")), TASK)
    assert torch.equal(state, torch.get_rng_state())


def test_a_mask_that_leaves_is_said_and_takes_every_epsilon_away():
    guarded = {"guard": Chain(Clip(norm=1.0), Gaussian(scale=1.0)), "frozen_parts": ("head",)}
    masked, fixed = (privacy(tiny_plan(net=MaskedNet(pad=pad), **guarded), TEXTS) for pad in ("mask", "fixed"))
    assert masked["epsilon"] is None and masked["inference"] is None
    assert "mask leaves beside" in masked["why_no_epsilon"]
    assert "how long each text is" in sentence(masked)
    assert fixed["epsilon"]["release"] > 0 and fixed["beside"] is None
