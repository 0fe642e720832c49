"""SEAL against its own algorithms walked by hand, SciPy's DCT, and what its key must not do."""

import pickle
from math import pi, prod, sqrt

import numpy as np
import pytest
import scipy.fft
import torch
from toys import SECRET, TASK, batches, split_and_whole, tiny_plan

from cutlayer.core.seeds import derive
from cutlayer.core.spec import spec
from cutlayer.guards import DCT, SEAL, Chain, LightSplit
from cutlayer.guards.base import Bound, Release
from cutlayer.guards.parts import periodic as maths
from cutlayer.guards.parts.periodic import WAVES, basis, prefix, sampled, secret_bases, secret_wave, sides, zigzag
from cutlayer.training.build import build_client
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.step import export, learn

GOOD = [name for name in WAVES if name not in ("sine", "sawtooth")]
SHAPES = [(4, 5, 5), (3, 4, 7), (2, 7, 4), (6, 9), (13,), (2, 3, 5, 4), (3, 1, 6)]
grams = pytest.mark.parametrize("gram", ["column", "row"])
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def activations(shape, count=6, seed=0):
    """Smooth and above 0, as after a ReLU: a prefix then has an end to find. The first map of sample 0 is dead."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.rand(count, *shape, generator=draw, dtype=torch.float64).add(0.3).relu()
    z.reshape(count, -1, *sides(shape))[0, 0] = 0
    return z.to(torch.get_default_dtype())


def walk(height, width):
    """Alg. 3 as it is printed, with a right and a bottom boundary of their own."""
    i, j, d = 0, 0, -1
    for _ in range(height * width):
        yield i, j
        r, c = i + d, j - d
        if 0 <= r < height and 0 <= c < width:
            i, j = r, c
            continue
        if d == -1:
            i, j = (i + 1, j) if j == width - 1 else (i, j + 1)
        else:
            i, j = (i, j + 1) if i == height - 1 else (i + 1, j)
        d = -d


def by_hand(X, Q1, Q2, energy):
    """Alg. 2 and 4 on one map; also where it stopped and the energies along the way."""
    Z = Q1 @ X @ Q2.T
    total, low, kept, energies = (Z**2).sum(), 0.0, np.zeros_like(Z), []
    for i, j in walk(*Z.shape):
        if low >= energy * total:
            break
        low += Z[i, j] ** 2
        energies.append(Z[i, j] ** 2)
        kept[i, j] = 1
    return Q1.T @ (Z * kept) @ Q2, kept, energies, total


def built(guard, shape, private=2):
    return guard.build(shape, public=1, private=private)


def matrices(module):
    return module.transform.left.double().numpy(), module.transform.right.double().numpy()


# ------------------------------------------------------------------ the basis
@grams
@pytest.mark.parametrize("size", [1, 2, 5, 8, 12, 14, 28, 64])
def test_every_basis_is_orthonormal(size, gram):
    secret = [secret_bases((size,), gram, private=seed)[0] for seed in range(5)]
    for Q in [basis(WAVES[name], size, gram) for name in GOOD] + secret:
        assert Q.dtype == torch.float64
        assert (Q.T @ Q - torch.eye(size).double()).abs().max() <= 1e-12
        single = Q.float().double()  # what a float32 run works with; measured without float32's own sums
        assert (single.T @ single - torch.eye(size).double()).abs().max() <= 1e-6


@grams
@pytest.mark.parametrize("size", [1, 2, 8, 12, 31])
def test_a_cosine_is_the_dct_ii(size, gram):
    dct = scipy.fft.dct(np.eye(size), type=2, norm="ortho", axis=0)
    np.testing.assert_allclose(basis(WAVES["cosine"], size, gram), dct, atol=1e-12)
    np.testing.assert_allclose(maths.dct_basis(size), dct, atol=1e-12)


@grams
def test_it_is_the_gram_schmidt_of_the_paper(gram):
    C = sampled(WAVES["harmonics"], 8).numpy()
    vectors = []
    for u in C.T if gram == "column" else C:
        for q in vectors:
            u = u - (q @ u) * q
        vectors.append(u / np.linalg.norm(u))
    expected = np.stack(vectors, axis=1 if gram == "column" else 0)
    np.testing.assert_allclose(basis(WAVES["harmonics"], 8, gram), expected, atol=1e-12)


def test_samples_are_those_of_the_chebyshev_nodes():
    """Sec. 4.2 for a period of 2π, where nothing has cancelled yet."""
    k, n = np.arange(6)[:, None], np.arange(6)[None]
    C = np.cos(k * 2 * pi * (2 * n + 1) / (4 * 6) + 0.3)
    np.testing.assert_allclose(sampled(WAVES["shifted"], 6), C / np.linalg.norm(C, axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "at_8", "at_64"),
    [("triangle", 1.11, 1.30), ("square", 2.4, 3.3), ("harmonics", 1.9, 2.7), ("shifted", 1.5, 1.7)],
)
def test_condition_numbers_known_from_another_implementation(name, at_8, at_64):
    assert np.linalg.cond(sampled(WAVES[name], 8).numpy()) == pytest.approx(at_8, abs=0.051)
    assert np.linalg.cond(sampled(WAVES[name], 64).numpy()) == pytest.approx(at_64, abs=0.051)


@pytest.mark.parametrize("seed", range(50))
def test_every_key_is_well_conditioned_and_follows_from_the_private_seed_alone(seed):
    sizes = (5, 8, 16)
    for draw in range(20):
        wave = secret_wave(derive(seed, "wave", draw))
        worst = max(np.linalg.cond(sampled(wave, size).numpy()) for size in sizes)
        if worst < 1e4:
            break
    assert worst < 1e4
    assert all(
        torch.equal(Q, basis(wave, size, "row"))
        for Q, size in zip(secret_bases(sizes, "row", seed), sizes, strict=True)
    )


def test_a_key_that_gives_no_basis_is_drawn_anew(monkeypatch):
    drawn = iter(["sine", "sawtooth", "triangle"])
    monkeypatch.setattr(maths, "secret_wave", lambda seed: WAVES[next(drawn)])
    (Q,) = secret_bases((8,), "column", private=0)
    assert torch.equal(Q, basis(WAVES["triangle"], 8, "column"))
    monkeypatch.setattr(maths, "secret_wave", lambda seed: WAVES["sine"])
    with pytest.raises(ValueError, match=r"none of 100 secret waves .* name a wave, e.g. 'triangle'"):
        secret_bases((8,), "column", private=0)


# ------------------------------------------------------------------ zig-zag and prefix
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (4, 4), (3, 5), (5, 3), (2, 9), (8, 8), (13, 13), (32, 32)])
def test_the_zigzag_is_alg_3(size):
    assert zigzag(*size).tolist() == [i * size[1] + j for i, j in walk(*size)]


def test_the_prefix_is_the_shortest_that_reaches_the_energy():
    rows = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    assert prefix(rows, 0.36).tolist() == [1, 0, 4, 2], "9 of 25 is just enough"
    assert prefix(rows, 0.37).tolist() == [2, 0, 4, 2]
    assert prefix(rows, 0.5).tolist() == [2, 0, 4, 2]
    assert prefix(rows, 0.51).tolist() == [2, 0, 4, 3]
    assert prefix(rows, 1.0).tolist() == [2, 0, 4, 4]
    assert rows[0].tolist() == [3, 4, 0, 0], "summed on a copy"


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "guard", [SEAL(), SEAL(energy=0.9, gram="row"), SEAL(energy=0.97, wave="triangle"), SEAL(energy=0.4)], ids=repr
)
@shapes
def test_it_is_the_paper_walked_by_hand(guard, shape):
    z, module = activations(shape), built(guard, shape)
    seen = module(z, batches(1)[0]).seen
    Q1, Q2 = matrices(module)
    maps, sent = (t.reshape(-1, *sides(shape)).numpy() for t in (z, seen))
    kept = 0
    for X, ours in zip(maps, sent, strict=True):
        theirs, mask, energies, total = by_hand(X, Q1, Q2, guard.energy)
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
        kept += mask.sum()
        if total:
            assert sum(energies) >= guard.energy * total > sum(energies[:-1]), "minimal"
    assert module.notes == {"kept": pytest.approx(kept / z.numel())}
    assert 0 < kept < z.numel()


@grams
@pytest.mark.parametrize("energy", [0.1, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("wave", ["secret", "cosine", "square"])
def test_every_map_stays_as_similar_as_claimed(wave, energy, gram):
    guard, z = SEAL(energy=energy, gram=gram, wave=wave), activations((8, 6, 9), seed=3)
    seen = built(guard, (8, 6, 9))(z, batches(1)[0]).seen
    a, b = (t.reshape(-1, 54).double()[1:] for t in (z, seen))  # the first map is dead
    cos = torch.nn.functional.cosine_similarity(a, b)
    assert cos.min() >= sqrt(energy) - 1e-6
    assert f">= {sqrt(energy):.3f}" in guard.claim((8, 6, 9))
    if energy == 1:
        torch.testing.assert_close(seen, z, atol=1e-5, rtol=0)
    else:
        assert cos.min() < 0.9999, "something was dropped"


def test_a_dead_map_stays_dead_and_what_is_no_number_stays_so():
    module, z = built(SEAL(), (4, 5, 5)), activations((4, 5, 5))
    z[1, 2, 3, 3] = float("nan")
    seen = module(z, batches(1)[0]).seen
    assert not seen[0, 0].any()
    assert seen[1, 2].isnan().any(), "a diverged run must be seen to diverge"
    assert seen[1, 3].isfinite().all()


@pytest.mark.usefixtures("double")
@shapes
def test_the_gradient_is_the_same_projection(shape):
    z, module = activations(shape).requires_grad_(), built(SEAL(), shape)
    seen = module(z, batches(1)[0]).seen
    g = torch.randn(seen.shape, generator=torch.Generator().manual_seed(1))
    seen.backward(g)
    Q1, Q2 = matrices(module)
    size = (-1, *sides(shape))
    for X, G, ours in zip(*(t.detach().reshape(size).numpy() for t in (z, g, z.grad)), strict=True):
        mask = by_hand(X, Q1, Q2, 0.7)[1]
        np.testing.assert_allclose(ours, Q1.T @ (mask * (Q1 @ G @ Q2.T)) @ Q2, atol=1e-12)


def test_it_acts_alike_when_predicting_and_on_any_batch():
    z, module = activations((4, 5, 5)), built(SEAL(), (4, 5, 5))
    one, other = batches(2)
    trained = module.train()(z, one).seen
    assert torch.equal(module.eval()(z, other).seen, trained)
    torch.testing.assert_close(module(z[2:3], other).seen, trained[2:3])
    assert module(z[:0], other).seen.shape == (0, 4, 5, 5)


# ------------------------------------------------------------------ Alg. 5
@shapes
def test_fixed_keeps_the_same_coefficients_of_everything(shape):
    module = built(SEAL(fixed=True), shape)
    a, b = activations(shape), activations(shape, seed=1)
    first, second, both = (module(z, batches(1)[0]).seen for z in (a, b, a - 3 * b))
    torch.testing.assert_close(both, first - 3 * second, atol=1e-5, rtol=0)
    torch.testing.assert_close(module(first, batches(1)[0]).seen, first, atol=1e-5, rtol=0)
    assert SEAL(fixed=True).claim(shape) == "none: empirical"


def test_fixed_keeps_about_the_energy_of_all_coefficients():
    """0.703 was measured for ω = 0.7 elsewhere: white noise has no compaction."""
    counts = [built(SEAL(fixed=True), (1, 16, 16), private=seed).count / 256 for seed in range(20)]
    assert np.mean(counts) == pytest.approx(0.7, abs=0.02)
    assert len(set(counts)) > 5, "the noise is the key's"


# ------------------------------------------------------------------ the key
def keys(client):
    return [buffer for name, buffer in client.split.guard.named_buffers() if name.endswith((".left", ".right"))]


def test_each_client_has_a_key_of_its_own_and_none_of_it_leaves():
    plan = tiny_plan(guard=SEAL(), clients=2)
    client, server, *_ = split_and_whole(plan)
    other = build_client(plan, TASK, 1, server.handle)
    heard, send = [], client.remote._send
    client.remote._send = lambda message: (heard.append(message), send(message))[1]
    for batch in batches(3):
        learn(client, batch)
    (Q, _), (theirs, _) = keys(client), keys(other)
    assert (Q - theirs).abs().max() > 0.1
    shown = [server.body.state_dict(), server.optimizer.state_dict(), plan.public(), server.seed, heard]
    dumped = pickle.dumps([*shown, export(client), repr(client.split), repr(plan)])
    assert heard[0]["z"].numpy().tobytes() in dumped, "what is there is found"
    for number in (0, 1):
        private = derive(derive(SECRET, "client", number), "guard")
        for key in [*secret_bases((5,), "column", private), Q, theirs]:
            assert key.float().numpy().tobytes() not in dumped
            assert key.double().numpy().tobytes() not in dumped
        assert str(private).encode() not in dumped
    assert not client.split.guard.state_dict()


def test_the_key_follows_from_the_private_seed_and_not_from_the_public_one():
    one, same, other = (SEAL().build((4, 5, 5), public, private) for public, private in [(1, 2), (9, 2), (1, 3)])
    assert torch.equal(one.transform.left, same.transform.left)
    assert not torch.allclose(one.transform.left, other.transform.left, atol=0.1)


def test_both_sides_of_a_map_come_from_one_function():
    module = built(SEAL(), (2, 4, 7))
    wave = secret_wave(derive(2, "wave", 0))
    for Q, size in ((module.transform.left, 4), (module.transform.right, 7)):
        torch.testing.assert_close(Q, basis(wave, size, "column").float())


def test_its_text_holds_no_key():
    assert repr(SEAL()) == "SEAL(energy=0.7)"
    assert spec(repr(SEAL(energy=0.9, wave="square"))) == SEAL(energy=0.9, wave="square")


# ------------------------------------------------------------------ what is refused, and when
@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (
            SEAL(wave="sine"),
            r"row 0 of its 5 x 5 samples is zero \(the wave is 0 at its start\)\. Take wave='secret'",
        ),
        (SEAL(wave="sawtooth"), r"5 x 5 samples are nearly dependent \(condition number .*e\+1\d, at most 1e\+04"),
        (Chain(SEAL(), SEAL(wave="sine")), "row 0 of its"),
    ],
    ids=repr,
)
def test_waves_that_are_no_basis_are_refused_before_training(guard, why):
    with pytest.raises(ValueError, match=why):
        cut_shapes(tiny_plan(guard=guard), TASK)


@pytest.mark.parametrize("name", GOOD)
def test_the_other_waves_are_accepted(name):
    assert SEAL(wave=name).out_shape((4, 12, 14)) == (4, 12, 14)


def test_a_row_in_the_middle_can_be_zero_too():
    with pytest.raises(ValueError, match=r"row 2 of its 4 x 4 samples is zero \(the wave is 0 at all of its nodes\)"):
        sampled(lambda phase: torch.where(phase * 8 % 2 == 1, 0.0, 1.0).double(), 4)


@pytest.mark.parametrize("guard", [SEAL, DCT], ids=lambda guard: guard.__name__)
@pytest.mark.parametrize("energy", [0, -0.1, 1.01, float("nan"), "0.7", None])
def test_energies_that_are_no_share_are_refused(guard, energy):
    with pytest.raises(ValueError, match=r"energy is the share .* above 0 and at most 1 \(the paper: 0.7\); got"):
        guard(energy=energy)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="gram is 'column' or 'row'"):
        SEAL(gram="columns")
    with pytest.raises(ValueError, match=r"wave is 'secret' or one of 'cosine', 'triangle'.*got 'cos'"):
        SEAL(wave="cos")
    with pytest.raises(ValueError, match="fixed is True"):
        SEAL(fixed=3)


def test_some_clients_may_go_without_it():
    plan = tiny_plan(guard=SEAL(), clients=3, guarded_clients=1)
    assert cut_shapes(plan, TASK).sent == (4, 5, 5)
    assert type(build_client(plan, TASK, 0, None).split.guard) is not type(
        build_client(plan, TASK, 1, None).split.guard
    )


# ------------------------------------------------------------------ how far one sample moves what leaves
@pytest.mark.parametrize("guard", [SEAL(), DCT()], ids=repr)
def test_a_clipped_row_stays_clipped_and_moves_by_twice_that(guard):
    clipped = Bound(norm=3.0, moves=6.0)
    assert guard.bound(clipped) == clipped
    assert guard.bound(Bound(norm=3.0, moves=1.0)).moves == 6, "a small step may become a jump"
    mixed = guard.bound(Bound(norm=3.0, moves=1.0, apart=False))
    assert mixed.norm == 3 and mixed.moves is None and "put it before the mixing" in mixed.why
    for unknown in (Bound(), Bound(norm=3.0, moves=6.0, p=1)):
        after = guard.bound(unknown)
        assert after.norm is None and after.moves is None and "put Clip(norm=...) behind it" in after.why
    released = Bound(norm=3.0, moves=1.0, release=Release("gaussian", 1.0))
    assert guard.bound(released) == released


def test_fixed_moves_nothing_further():
    assert SEAL(fixed=True).bound(Bound(norm=3.0, moves=1.0)) == Bound(norm=3.0, moves=1.0)
    assert SEAL(fixed=True).bound(Bound(norm=3.0, moves=1.0, p=1)).moves is None


def test_no_row_gets_longer_and_a_small_step_may_jump():
    """Why `moves` is twice the norm and not what came in: where the prefix ends depends on the data."""
    module = built(SEAL(wave="cosine", energy=0.5), (1, 2, 2))
    Q = maths.dct_basis(2).float()
    at, beyond = (Q.T @ torch.tensor([[1.0, x], [0.0, 0.0]]) @ Q for x in (1.0, 1.0001))
    first, second = (module(X.reshape(1, 1, 2, 2), batches(1)[0]).seen for X in (at, beyond))
    assert (first - second).norm() > 0.9
    z = torch.randn(50, 1, 2, 2)
    assert (module(z, batches(1)[0]).seen.flatten(1).norm(dim=1) <= z.flatten(1).norm(dim=1) * (1 + 1e-5)).all()


def test_it_lowers_the_rank_before_a_projection():
    """A chain reads what came before: the projection gets the filtered maps."""
    z, batch = activations((4, 5, 5)), batches(1)[0]
    guard = Chain(SEAL(), LightSplit(ratio=1))
    seen = guard.build((4, 5, 5), 1, 2)(z, batch).seen
    alone = SEAL().build((4, 5, 5), 1, derive(2, 0))(z, batch).seen
    assert seen.shape == (6, prod((4, 5, 5)))
    torch.testing.assert_close(guard.lift((4, 5, 5), 1)(seen), alone, atol=1e-5, rtol=0)


def test_in_one_dimension_every_row_is_a_map_of_its_own():
    """Tokens x features as rows of features, under the same key."""
    z = torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(4))
    rows = SEAL(dims=1).build((3, 12), 0, 9)(z, None).seen
    alone = SEAL().build((12,), 0, 9)(z.flatten(0, 1), None).seen
    assert torch.equal(rows, alone.reshape(z.shape))
    together = SEAL().build((3, 12), 0, 9)(z, None).seen
    assert not torch.allclose(rows, together)
    with pytest.raises(ValueError, match="dims is 2"):
        SEAL(dims=3)
