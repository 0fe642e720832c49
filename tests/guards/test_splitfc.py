"""SplitFC: which columns leave and how often, the levels they get, the budget, and where gradients go."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from toys import TASK, batches, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.guards import Chain, LightSplit, SplitFC
from cutlayer.guards.splitfc import allocate, keep_probabilities, levels, spreads, whole_bits
from cutlayer.training.build import build_client, build_server
from cutlayer.training.step import learn
from cutlayer.wire import frames
from cutlayer.wire.codecs import BY_TAG

DRAW = generator(1)
Z = torch.relu(torch.randn(32, 6, 8, 8, generator=DRAW) * torch.rand(6, 8, 8, generator=DRAW) * 3)


def sent(guard, z=Z, seed=0, train=True):
    module = guard.build(tuple(z.shape[1:]), 0, 9).train(train)
    return module(z, Batch(z, torch.zeros(len(z)), seed=seed)).seen, module


# ------------------------------------------------------------------------------- which columns
@pytest.mark.parametrize("ratio", [1, 1.5, 4, 16, 100])
def test_probabilities_add_up_and_are_proportional_where_they_are_not_one(ratio):
    spread = np.random.default_rng(0).gamma(0.5, size=400)
    q = keep_probabilities(spread, 400 / ratio)
    assert q.sum() == pytest.approx(400 / ratio, abs=1e-9) and q.min() >= 0 and q.max() <= 1
    if ratio > 1:
        c = brentq(lambda c: np.minimum(1, c * spread).sum() - 400 / ratio, 0, 1e9, xtol=1e-15)
        np.testing.assert_allclose(q, np.minimum(1, c * spread), rtol=1e-6)


def test_probabilities_where_few_columns_vary():
    q = keep_probabilities(np.array([0.0, 3.0, 0.0, 1.0, 0.0]), 3.0)
    np.testing.assert_allclose(q, [1 / 3, 1, 1 / 3, 1, 1 / 3])
    np.testing.assert_allclose(keep_probabilities(np.zeros(8), 2.0), np.full(8, 0.25))


def test_spread_is_in_units_of_the_channels_range():
    expected = Z.double().numpy().std(0) / np.ptp(Z.double().numpy(), axis=(0, 2, 3))[:, None, None]
    np.testing.assert_allclose(spreads(Z), expected.reshape(-1), rtol=1e-5)
    flat = torch.randn(9, 5, generator=generator(2), dtype=torch.float64)
    np.testing.assert_allclose(spreads(flat), flat.numpy().std(0), rtol=1e-12)


def test_dropout_is_right_on_average():
    """With levels to spare the mean over draws is z; the error shrinks as a mean's does."""
    module = SplitFC(ratio=2, budget=32).build((6, 8, 8), 0, 3)
    z = Z + 1.0
    found = torch.stack([module(z, Batch(z, torch.zeros(32), seed=seed)).seen for seed in range(150)]).double()
    q = torch.from_numpy(keep_probabilities(spreads(z), 192.0)).reshape(6, 8, 8)
    error = (found.mean(0) - z) / (z * ((1 - q) / q / 150).sqrt() + 1e-3)  # in standard errors of the mean
    assert error.abs().max() < 6 and error.square().mean() < 1.5
    kept = (found != 0).any(1).double().mean(0)
    assert float((kept - q).abs().max()) < 6 * 0.5 / 150**0.5
    assert float(kept.sum()) == pytest.approx(192, rel=0.02)


# ------------------------------------------------------------------------------------- levels
def test_the_closed_form_is_stationary():
    ranges = np.geomspace(1e-6, 1e6, 2001)  # u from 1e-12 to 1e12, over both forms and where they meet
    ranges = np.sort(np.append(ranges, np.sqrt(6.75)))
    q = levels(ranges, 1.0)
    # (Q - 1)³ / Q = r²: by t, because Q - 1 of a float Q next to 1 has lost its digits.
    big = q > 1.01
    np.testing.assert_allclose((q[big] - 1) ** 3 / q[big], ranges[big] ** 2, rtol=1e-12)
    t = q - 1
    assert np.abs(t**3 - ranges**2 * t - ranges**2).max() <= 1e-12 * (ranges**2 * q).max()
    assert (np.diff(q) > 0).all() and q.min() > 1


def test_allocation_spends_the_bits_and_no_other_does_better():
    draw = np.random.default_rng(0)
    ranges = draw.gamma(2.0, size=40)
    found = allocate(ranges, 160.0)
    assert np.log2(found).sum() == pytest.approx(160, abs=1e-6)
    cost = ((ranges / (found - 1)) ** 2).sum()
    for _ in range(200):  # moving bits between two columns never helps
        one, other = draw.choice(40, 2, replace=False)
        moved = np.log2(found)
        moved[[one, other]] += np.array([1, -1]) * draw.uniform(0.001, 0.5)
        if moved.min() >= 1:
            assert ((ranges / (2**moved - 1)) ** 2).sum() >= cost * (1 - 1e-9)


def test_whole_bits_are_all_spent_and_as_good_as_greedy_from_nothing():
    ranges = np.random.default_rng(1).gamma(1.0, size=30) + 0.01
    for bits in (30, 31, 77, 200, 450):
        widths = whole_bits(ranges, bits)
        assert widths.sum() == bits and widths.min() >= 1 and widths.max() <= 15
        # Gains fall with every bit, so greedy from one bit each is optimal.
        best = np.ones(30, dtype=int)
        for _ in range(bits - 30):
            gain = np.where(best < 15, ranges**2 * ((2.0**best - 1) ** -2 - (2.0 ** (best + 1) - 1) ** -2), -1)
            best[gain.argmax()] += 1
        error, least = (((ranges / (2.0**w - 1)) ** 2).sum() for w in (widths, best))
        assert error <= 1.1 * least
    assert (whole_bits(ranges, 1000) == 15).all()


# ------------------------------------------------------------------------------------- budget
@pytest.mark.parametrize("budget", [0.3, 0.5, 1, 2.5])
@pytest.mark.parametrize("ratio", [1, 4, 12])
@pytest.mark.parametrize("train", [True, False])
def test_the_budget_is_kept_and_used(budget, ratio, train):
    for seed in range(5):
        seen, module = sent(SplitFC(ratio=ratio, budget=budget), seed=seed, train=train)
        size, most = module.packed.size(), budget * Z.numel() / 8
        assert size <= most
        full = bool((module.packed.widths == 15).all())
        assert full or size >= 0.9 * most
        data = memoryview(bytes(module.packed.encode()))
        assert len(data) == size
        assert torch.equal(BY_TAG[4].decode(data, torch.float32, tuple(Z.shape)), seen)


@pytest.mark.parametrize("shape", [(1, 300), (2, 300), (3, 20, 4, 4), (50, 7), (64, 2880)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_budget_holds_for_batches_of_all_sizes(shape, dtype):
    z = torch.relu(torch.randn(shape, generator=generator(4), dtype=dtype))
    for budget in (1.0, 2.0, 6.0):
        for train in (True, False):
            seen, module = sent(SplitFC(ratio=2, budget=budget), z, train=train)
            assert module.packed.size() <= budget * z.numel() / 8 and seen.dtype == dtype
            data = memoryview(bytes(module.packed.encode()))
            assert torch.equal(BY_TAG[4].decode(data, dtype, shape), seen)


def test_levels_bring_the_error_down_and_no_value_leaves_its_columns_ends():
    errors = []
    for budget in (0.5, 1, 2, 4, 8):
        seen = SplitFC(budget=budget).compress(Z)[0]
        errors.append(float((seen - Z).square().sum() / Z.square().sum()))
        slack = (Z.amax() - Z.amin()) / 255 * 1.001
        assert (seen <= Z.amax(0) + slack).all() and (seen >= Z.amin(0).clamp_max(0) - slack).all()
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-4


def test_columns_are_drawn_at_inference_too_and_the_same_ones_for_the_same_step():
    guard = SplitFC(ratio=8, budget=0.5)
    for train in (True, False):
        drawn = [sent(guard, seed=seed, train=train)[0] for seed in (1, 1, 2)]
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(sent(guard, seed=1)[0], sent(guard, seed=1, train=False)[0])
    assert guard.least_batch == 2


def test_as_a_squeeze_nothing_is_drawn_or_scaled():
    seen, packed = SplitFC(ratio=16, budget=4).compress(Z)
    assert len(packed.at) == int((Z != 0).any(0).sum())
    step = (packed.high - packed.low) * packed.grids[3] / ((1 << packed.widths[packed.widths > 0]) - 1)
    graded = packed.at[packed.widths > 0]
    assert len(graded) and ((seen - Z).flatten(1)[:, graded].abs() <= 0.501 * step).all()


# ---------------------------------------------------------------------------------- gradients
def test_gradients_are_dropped_and_scaled_as_their_columns_are():
    z = Z.clone().requires_grad_()
    seen, module = sent(SplitFC(ratio=3, budget=4), z)
    weight = torch.randn(seen.shape, generator=generator(5))
    (seen * weight).sum().backward()
    q = torch.from_numpy(keep_probabilities(spreads(Z), 384 / 3)).float()
    kept = torch.zeros(384, dtype=torch.bool)
    kept[module.packed.at] = True
    expected = torch.where(kept, weight.flatten(1) / q, 0.0)
    torch.testing.assert_close(z.grad.flatten(1)[:, kept], expected[:, kept])
    # A column that was drawn and is zero everywhere is not written, but does have a gradient at home.
    silent = (Z.flatten(1) == 0).all(0)
    assert (z.grad.flatten(1)[:, ~kept & ~silent] == 0).all()


def test_message_4_is_empty_where_no_column_came():
    plan = tiny_plan(guard=SplitFC(ratio=4, budget=3))
    server, heard = build_server(plan.public(), TASK), []

    def send(message):
        heard.append((message, server.handle(message)))
        return heard[-1][1]

    learn(build_client(plan, TASK, 0, send), batches(1)[0])
    z, dz = heard[0][0]["z"], heard[1][1]["dz"]
    came = (z != 0).any(0)
    assert 0 < came.sum() < came.numel() / 2
    assert (dz[:, ~came] == 0).all() and (dz[:, came] != 0).any()
    assert frames.size(heard[1][1]) < 0.6 * frames.size(Message(Kind.BACKWARD, 0, 0, {"dz": torch.ones_like(dz)}))


def test_gradients_can_be_given_a_budget_too():
    plan = tiny_plan(guard=SplitFC(ratio=4, budget=3), compression=Compression(gradients=SplitFC(budget=6)))
    server, heard = build_server(plan.public(), TASK), []

    def send(message):
        heard.append((message, server.handle(message)))
        return heard[-1][1]

    learn(build_client(plan, TASK, 0, send), batches(1)[0])
    answer = heard[1][1]
    assert answer.packed["dz"].size() <= 6 * answer["dz"].numel() / 8
    assert torch.equal(frames.decode(frames.encode(answer))["dz"], answer["dz"])


# ---------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(("made", "words"), [
    (lambda: SplitFC(ratio=0.5), "one column in `ratio`"),
    (lambda: SplitFC(budget=0), "budget is in bits"),
    (lambda: SplitFC(budget=33), "budget is in bits"),
    (lambda: SplitFC(ends=0), "ends is a whole number"),
    (lambda: Chain(SplitFC(), LightSplit(ratio=2)), "drops coordinates"),
    (lambda: sent(SplitFC(budget=0.01), Z[:2, :1]), "raise the budget or the batch"),
])  # fmt: skip
def test_settings_that_make_no_sense(made, words):
    with pytest.raises(ValueError, match=words):
        made()


def test_numbers_that_are_none_go_as_they_are():
    for odd in (
        torch.tensor([[1.0, float("nan")]]),
        torch.tensor(2.0),
        torch.ones(2, 3, dtype=torch.float64) * 1e300,
    ):
        seen, packed = SplitFC(budget=32).compress(odd)
        assert seen is odd and packed is None
