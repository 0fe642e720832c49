"""Clip and noise: the bound, the draws, the calibration against scipy, and what is refused."""

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest, norm
from toys import GUARDS, TASK, batches, tiny_plan

from cutlayer.core.batch import Batch
from cutlayer.core.errors import NonFinite
from cutlayer.guards import Chain, Clip, Gaussian, KAnonymous, Laplace, LightSplit, NoGuard, Noise, Prism, Subset
from cutlayer.guards.base import Bound, Release, behind
from cutlayer.guards.clip import clipped
from cutlayer.guards.parts.calibration import gaussian_delta, gaussian_epsilon, gaussian_multiplier
from cutlayer.guards.parts.noise import draw
from cutlayer.training.build import build_client
from cutlayer.training.plan.shapes import cut_shapes

inf, nan = float("inf"), float("nan")


def batch(count=1, seed=0):
    return Batch(torch.zeros(count, 1), torch.zeros(count, dtype=torch.long), seed=seed)


def lengths(rows, p):
    """Computed apart from the code: by numpy, in its widest float."""
    return np.linalg.norm(rows.detach().numpy().astype(np.longdouble), ord=p, axis=1)


# ------------------------------------------------------------------ the clip bound
HUGE = {torch.float32: 3e38, torch.float64: 1.7e308}


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [1e-3, 1.0, 7.3])
def test_no_row_is_longer_than_the_norm_whatever_it_was(dtype, p, limit):
    width, top, least = 4096, HUGE[dtype], torch.finfo(dtype).tiny
    rows = torch.zeros(9, width, dtype=dtype)
    rows[1], rows[2, 5], rows[3] = top, top, -top
    rows[4] = least / 7  # denormal
    rows[5] = limit / width ** (1 / p)  # on the edge
    rows[6] = torch.linspace(-1, 1, width, dtype=dtype) * limit
    rows[7, ::2], rows[7, 1::2] = top, least
    rows[8] = 1.000001 * limit / width ** (1 / p)
    short, _ = clipped(rows, limit, p)
    assert (lengths(short, p) <= limit).all()
    assert (lengths(short, p)[[1, 2, 3, 6, 7, 8]] >= limit * (1 - 1e-5)).all(), "not shorter than asked, either"
    assert torch.equal(short[[0, 4]], rows[[0, 4]])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
)
def test_the_bound_holds_on_any_numbers(values, limit):
    for p in (1, 2):
        assert lengths(clipped(torch.tensor([values]), limit, p)[0], p)[0] <= limit


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("p", [1, 2])
def test_clipping_scales_and_has_the_gradient_of_scaling(p):
    rows = torch.randn(6, 5) * torch.tensor([0.01, 0.1, 1, 10, 100, 1000])[:, None]
    short, cut = clipped(rows, 1.0, p)
    size = rows.norm(p, dim=1, keepdim=True)
    torch.testing.assert_close(short, torch.where(size > 1, rows / size, rows))
    assert torch.equal(cut, size[:, 0] > 1)
    assert torch.equal(short[~cut], rows[~cut]), "bit for bit"
    assert torch.autograd.gradcheck(lambda x: clipped(x, 1.0, p)[0], rows.requires_grad_())


@pytest.mark.parametrize("start", [0.0, 1e30])
def test_the_gradient_is_a_number_at_zero_and_far_out(start):
    rows = torch.full((2, 3), start, requires_grad=True)
    clipped(rows, 1.0, 2)[0].sum().backward()
    assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("bad", [inf, -inf, nan])
def test_a_row_that_is_no_number_is_refused_not_hidden(bad):
    module = Clip().build((3,), 1, 2)
    z = torch.ones(2, 3)
    z[1, 1] = bad
    with pytest.raises(NonFinite, match=r"Clip\(norm=1.0\) is no finite number, .* lower the learning rate"):
        module(z, batch(2))


def test_clip_notes_how_many_rows_it_cut():
    module = Clip(norm=1.0).build((3,), 1, 2)
    module(torch.tensor([[0.1, 0, 0], [2, 0, 0], [0, 3, 0], [0, 0, 0.5]]), batch(4))
    assert module.notes == {"clipped": 0.5}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Clip(norm=0), "longest a row may be"),
        (lambda: Clip(norm=inf), "longest a row may be"),
        (lambda: Clip(p=3), "p=2 .Gaussian noise. or p=1"),
        (lambda: Gaussian(), "either scale or epsilon: Gaussian"),
        (lambda: Gaussian(scale=1.0, epsilon=2), "either scale or epsilon"),
        (lambda: Gaussian(scale=0), "Gaussian's scale is a number above 0"),
        (lambda: Gaussian(epsilon=-1), "Gaussian's epsilon is a number above 0"),
        (lambda: Gaussian(epsilon=1, delta=1.5), "delta is a probability"),
        (lambda: Gaussian(epsilon=1, delta=0.0), "delta is a probability"),
        (lambda: Laplace(), "either scale or epsilon: Laplace"),
        (lambda: Laplace(scale=nan), "Laplace's scale"),
        (lambda: Noise(scale=-1), "Noise's scale"),
    ],
)
def test_impossible_settings_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ------------------------------------------------------------------ what one sample moves
def moved(guard, seed=0, rows=8, tries=30):
    """The furthest that replacing one sample moved all rows together, over adversarial replacements."""
    module = guard.build((5,), 1, 2)
    dice = torch.Generator().manual_seed(seed)
    far = 0.0
    for n in range(tries):
        one = torch.randn(rows, 5, generator=dice, dtype=torch.float64) * 10 ** (n % 4)
        other = one.clone()
        other[n % rows] = -one[n % rows] * 10
        with torch.no_grad():
            a, b = (module(z, batch(rows, seed=n)).seen for z in (one, other))
        far = max(far, float((a - b).norm()))
    return far


@pytest.mark.parametrize(
    "guard",
    [
        Clip(norm=1.5),
        Chain(Clip(norm=1.5), Subset(ratio=2)),
        Chain(Clip(norm=1.5), KAnonymous(k=2, grouping="random")),
        Chain(Clip(norm=1.5), KAnonymous(k=4, grouping="random"), Clip(norm=9.0)),
        Chain(Clip(norm=1.5), Clip(norm=0.5)),
        Chain(Clip(norm=0.5), Clip(norm=1.5)),
    ],
    ids=repr,
)
def test_no_sample_moves_more_than_the_bound_says(guard):
    moves = guard.bound(Bound()).moves
    assert 0.5 * moves < moved(guard) <= moves * (1 + 1e-9), "holds, and is not idle"


@pytest.mark.parametrize(
    ("guard", "moves"),
    [
        (Clip(norm=1.5), 3.0),
        (Clip(norm=1.5, p=1), 3.0),
        (Chain(Clip(norm=1.5), KAnonymous(k=5, grouping="random")), 0.6),
        (Chain(Clip(norm=0.5), Clip(norm=1.5)), 1.0),
        (Chain(Clip(norm=1.5), LightSplit(ratio=2)), 3.0),
        (Chain(Clip(norm=1.5), Noise(scale=3.0)), 3.0),
        (Chain(KAnonymous(k=5), Clip(norm=1.5)), None),
        (Chain(KAnonymous(k=5), LightSplit(ratio=2), Clip(norm=1.5)), None),
        (Chain(KAnonymous(k=5, grouping="random"), Clip(norm=1.5)), None),
        (Chain(Clip(norm=1.5), KAnonymous(k=5)), None),
    ],
    ids=repr,
)
def test_the_bound_of_a_chain(guard, moves):
    assert guard.bound(Bound()).moves == (None if moves is None else pytest.approx(moves))


def test_clipping_rows_that_are_already_mixed_bounds_nothing():
    """Each of many means may move by 2C; only a clip before the mixing says how far they go together."""
    assert moved(Chain(KAnonymous(k=2), Clip(norm=1.0)), rows=16, tries=60) > 2.05
    with pytest.raises(ValueError, match=r"put Clip\(norm=\.\.\.\) before the guard that mixes them"):
        Chain(KAnonymous(k=2), Clip(norm=1.0), Gaussian(epsilon=8))


@pytest.mark.parametrize("guard", GUARDS, ids=repr)
def test_rows_that_a_guard_mixed_are_never_taken_for_samples_again(guard):
    _, bound = behind(guard, Bound())
    assert bound.apart == (not guard.mixes_samples)
    assert guard.mixes_samples <= (Clip().bound(bound).moves is None or bound.release is not None)


# ------------------------------------------------------------------ calibration
@pytest.mark.parametrize(
    ("epsilon", "multiplier"), [(0.5, 7.03), (1, 3.73), (2, 1.99), (4, 1.08), (8, 0.600), (16, 0.344)]
)
def test_the_multipliers_of_the_analytic_gaussian_mechanism(epsilon, multiplier):
    assert gaussian_multiplier(epsilon, 1e-5) == pytest.approx(multiplier, abs=6e-3)


def delta_by_scipy(epsilon, multiplier):
    mu = 1 / multiplier
    return norm.cdf(-epsilon / mu + mu / 2) - exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1, 8, 40])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_a_calibrated_scale_gives_its_epsilon_back(epsilon, delta):
    clip = 0.7
    settled, bound = behind(Gaussian(epsilon=epsilon, delta=delta), Clip(norm=clip).bound(Bound()))
    multiplier = settled.scale / (2 * clip)
    assert delta_by_scipy(epsilon, multiplier) == pytest.approx(delta, rel=1e-6)
    assert delta_by_scipy(epsilon, 0.999 * multiplier) > delta, "and no less noise would do"
    assert gaussian_epsilon(multiplier, delta) == pytest.approx(epsilon, rel=1e-9)
    assert bound.release == Release("gaussian", pytest.approx(multiplier))


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1000.0, 0.021), (20_000.0, 0.0049)])
def test_the_formula_survives_where_floats_do_not(epsilon, multiplier):
    """log Φ by scipy, and e^ε never written out."""
    mu = 1 / multiplier
    tail = norm.logcdf(-epsilon / mu + mu / 2)
    other = epsilon + norm.logcdf(-epsilon / mu - mu / 2)
    assert gaussian_delta(epsilon, multiplier) == pytest.approx(exp(tail) - exp(other), rel=1e-6)
    assert gaussian_epsilon(gaussian_multiplier(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon)


def test_noise_that_needs_no_epsilon():
    assert gaussian_epsilon(1e9, 1e-5) == 0.0


def test_laplace_is_calibrated_to_the_l1_norm():
    settled, bound = behind(Laplace(epsilon=4), Clip(norm=0.5, p=1).bound(Bound()))
    assert settled == Laplace(scale=0.25) and bound.release == Release("laplace", 0.25)


def test_noise_behind_random_groups_is_k_times_less():
    (*_, alone), (*_, shared) = (
        chain._calibrated()
        for chain in (
            Chain(Clip(norm=1.0), Gaussian(epsilon=8)),
            Chain(Clip(), KAnonymous(k=5, grouping="random"), Gaussian(epsilon=8)),
        )
    )
    assert alone.scale == pytest.approx(5 * shared.scale)


def test_more_after_the_noise_costs_nothing_and_changes_nothing():
    one = Chain(Clip(norm=1.0), Gaussian(epsilon=8))
    more = Chain(
        Clip(), Gaussian(epsilon=8), LightSplit(ratio=2), KAnonymous(k=2), Noise(scale=1.0), Gaussian(scale=1.0)
    )
    assert more.bound(Bound()).release == one.bound(Bound()).release


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chain(Gaussian(epsilon=8)), "Gaussian(epsilon=8) cannot be calibrated: no row is bounded: put Clip"),
        (lambda: Chain(LightSplit(ratio=2), Gaussian(epsilon=8)), "put Clip(norm=...) before the noise"),
        (lambda: Chain(Clip(), KAnonymous(k=5), Gaussian(epsilon=8)), "depend on the data"),
        (lambda: Chain(Clip(), Prism(), Gaussian(scale=1.0)), "the zeros are gone"),
        (lambda: Chain(Clip(), Laplace(epsilon=8)), "write Clip(norm=..., p=1), or take Gaussian"),
        (lambda: Chain(Laplace(epsilon=8)), "Laplace(epsilon=8) cannot be calibrated: no row is bounded"),
        (lambda: Chain(Clip(), Gaussian(epsilon=8), Gaussian(epsilon=8)), "carry noise already"),
        (lambda: Chain(Clip(), Noise(), KAnonymous(k=2), Gaussian(epsilon=8)), "depend on the data"),
        (lambda: Gaussian(epsilon=8).out_shape((4, 5, 5)), "write Chain(Clip(norm=1.0), Gaussian(epsilon=8))"),
        (lambda: Laplace(epsilon=8).out_shape((4, 5, 5)), "write Chain(Clip(norm=1.0, p=1), Laplace(epsilon=8))"),
        (lambda: tiny_plan(guard=Gaussian(epsilon=8)), "or give scale=... and claim no ε"),
        (lambda: tiny_plan(guard=Gaussian(epsilon=8, per="run")), "write Chain(Clip(norm=1.0), Gaussian("),
        (
            lambda: tiny_plan(guard=Laplace(epsilon=8)),
            "write Chain(Clip(norm=1.0, p=1), Laplace(epsilon=8)), or give",
        ),
        (lambda: Gaussian(epsilon=8).build((4,), 1, 2), "cannot be calibrated"),
    ],
)
def test_an_epsilon_that_nothing_bounds_is_refused_before_training(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert words in str(error.value)


def test_a_calibrated_chain_can_be_built_where_it_is_asked_for():
    chain = Chain(LightSplit(ratio=2), Clip(norm=1.0), Gaussian(epsilon=8))
    assert chain.out_shape((4, 5, 5)) == (50,) and cut_shapes(tiny_plan(guard=chain), TASK).sent == (50,)
    assert "epsilon=8" in repr(chain) and chain.public_part() == chain


# ------------------------------------------------------------------ the noise itself
def added(guard, shape, seed=0, private=2):
    z = torch.zeros(shape)
    return guard.build(shape[1:], 1, private)(z, batch(shape[0], seed=seed)).seen - z


@pytest.mark.parametrize(
    ("guard", "deviation", "law"),
    [
        (Gaussian(scale=0.7), 0.7, ("norm", (0, 0.7))),
        (Laplace(scale=0.7), 0.7 * 2**0.5, ("laplace", (0, 0.7))),
        (Noise(scale=0.7), 0.7 * 2**0.5, ("laplace", (0, 0.7))),
    ],
    ids=repr,
)
def test_the_noise_has_the_spread_and_the_law_it_should(guard, deviation, law):
    drawn = added(guard, (100, 1000), seed=3)
    assert drawn.std().item() == pytest.approx(deviation, rel=0.01)
    assert abs(drawn.mean().item()) < 0.01
    assert kstest(drawn.flatten().double().numpy(), *law).pvalue > 1e-3
    neighbours = torch.corrcoef(drawn[:2])[0, 1].item()
    assert abs(neighbours) < 0.15, "rows do not share noise"


@pytest.mark.parametrize("guard", [Gaussian(scale=0.7), Laplace(scale=0.7), Noise(scale=0.7)], ids=repr)
@pytest.mark.parametrize("training", [True, False])
def test_noise_is_new_for_every_step_and_client_and_the_same_when_replayed(guard, training):
    def drawn(private, seed):
        z = torch.zeros(4, 3, 5)
        return guard.build((3, 5), 1, private).train(training)(z, batch(4, seed=seed)).seen

    assert torch.equal(drawn(2, 7), drawn(2, 7))
    others = [drawn(2, 7), drawn(2, 8), drawn(3, 7), drawn(2, 7 + 2**32), drawn(2 + 2**32, 7)]
    for n, one in enumerate(others):
        assert all(not torch.equal(one, other) for other in others[n + 1 :])


@pytest.mark.parametrize("guard", [Gaussian(scale=0.7), Noise(scale=0.7)], ids=repr)
def test_a_seed_that_is_used_again_does_not_cancel_the_noise(guard):
    module, z = guard.build((5,), 1, 2), torch.zeros(1000, 5)
    one, other = module(z, batch(1000)).seen, module(z + 1e-6, batch(1000)).seen
    assert (one - other).std() > 0.7


def test_every_bit_of_a_seed_counts():
    """torch's CPU generator forgets all but 32 of them: this is why noise does not come from it."""
    torch_forgets = [torch.randn(4, generator=torch.Generator().manual_seed(5 + high)) for high in (0, 1 << 40)]
    assert torch.equal(*torch_forgets)
    z = torch.zeros(4)
    for bit in range(63):
        assert not torch.equal(draw("gaussian", z, 5, 1), draw("gaussian", z, 5 ^ 1 << bit, 1))
        assert not torch.equal(draw("gaussian", z, 5, 1), draw("gaussian", z, 5, 1 ^ 1 << bit))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_that_do_not_lie_in_order_can_be_noised(dtype):
    z = torch.randn(4, 6, dtype=dtype)
    seen = Gaussian(scale=1.0).build((4,), 1, 2)(z.T, batch(6)).seen
    assert seen.shape == (6, 4) and seen.dtype == dtype


def test_noise_of_two_clients_of_one_plan_differs():
    plan = tiny_plan(guard=Gaussian(scale=1.0), clients=2)
    one, two = (build_client(plan, TASK, number, lambda message: message).split.guard for number in (0, 1))
    z, now = torch.zeros(6, 4, 5, 5), batches(1)[0]
    assert not torch.equal(one(z, now).seen, two(z, now).seen)


def test_groups_share_their_noise():
    """Noise for each member would average away; a row has it once because rows, not samples, leave."""
    module = Chain(KAnonymous(k=3), Noise(scale=1.0)).build((4,), 1, 2)
    seen, _, rows, _ = module(torch.randn(9, 4), batch(9))
    assert len(seen) == 3 and rows.shape == (9,)


def test_noise_notes_how_large_it_is_next_to_what_it_hides():
    z = 4 * torch.randn(50, 400)
    for guard, expected in ((Gaussian(scale=2.0), 0.5), (Noise(scale=2.0), 0.5 * 2**0.5)):
        module = guard.build((400,), 1, 2)
        module(z, batch(50))
        assert float(module.notes["noise/std"]) == pytest.approx(expected, rel=0.02)
    constant = Noise(scale=1.0).build((4,), 1, 2)
    constant(torch.ones(3, 4), batch(3))
    assert constant.notes["noise/std"] < inf, "JSON has no infinity"


def test_the_gradient_goes_through_noise_unchanged():
    z = torch.randn(3, 4, requires_grad=True)
    Gaussian(scale=1.0).build((4,), 1, 2)(z, batch(3)).seen.sum().backward()
    assert torch.equal(z.grad, torch.ones(3, 4))


# ------------------------------------------------------------------ an attacker that has to tell two batches apart
def empirical_epsilon(guard, delta, draws=200_000):
    """A lower bound on ε that holds with 99 %: the best likelihood-ratio threshold, chosen on half of the draws.

    The attacker knows both neighbours, two rows that point as far apart as the clip lets them, and looks along their
    difference. Rows have noise of their own (shown above), so a batch of equal rows is as many draws.
    """
    module = guard.build((3,), 1, 2).eval()

    def scores(sign, first):
        z = torch.tensor([[sign * 9.0, 0.0, 0.0]]).expand(2000, 3)
        return np.concatenate([module(z, batch(2000, first + n)).seen[:, 0].numpy() for n in range(draws // 2000)])

    a, b = scores(-1, 0), scores(1, draws)
    half = draws // 2
    thresholds = np.quantile(np.concatenate([a[:half], b[:half]]), np.linspace(0.3, 0.9995, 60))

    def least(threshold, part):
        misses, hits = int((a[part] > threshold).sum()), int((b[part] > threshold).sum())
        count = len(a[part])
        high = beta.ppf(0.995, misses + 1, count - misses)  # Clopper-Pearson
        low = beta.ppf(0.005, hits, count - hits + 1) if hits else 0.0
        return log((low - delta) / high) if low > delta else 0.0

    best = max(thresholds, key=lambda t: least(t, slice(half)))
    return least(best, slice(half, None))


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_two_batches_cannot_be_told_apart_better_than_claimed(epsilon):
    found = empirical_epsilon(Chain(Clip(norm=1.0), Gaussian(epsilon=epsilon)), delta=1e-5)
    assert 0.3 * epsilon < found <= epsilon


def test_laplace_noise_keeps_its_word_too():
    found = empirical_epsilon(Chain(Clip(norm=1.0, p=1), Laplace(epsilon=2.0)), delta=0.0)
    assert 1.8 < found <= 2.0


def test_the_attacker_would_notice_too_little_noise():
    """The tests above can fail: without its clip, or with half of it, the noise gives more away than was claimed."""
    scale = Chain(Clip(norm=1.0), Gaussian(epsilon=1.0))._calibrated()[-1].scale
    assert empirical_epsilon(Chain(NoGuard(), Gaussian(scale=scale)), delta=1e-5) > 1.5
    assert empirical_epsilon(Chain(Clip(norm=1.0), Gaussian(scale=scale / 4)), delta=1e-5) > 1.5
    half = Chain(Clip(norm=1.0, p=1), Laplace(scale=0.5))  # ε = 4, not 2
    assert empirical_epsilon(half, delta=0.0) > 2.5
