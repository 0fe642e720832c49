"""SEAL's key shows in its messages: exact spans by rank, the wave that has them, and copies that send the same."""

import pytest
import torch
from rotation import and_the_rest

from cutlayer.attacks.parts.seal_keys import install, recover, recoverable, spans
from cutlayer.core.batch import Batch
from cutlayer.guards import SEAL, WCC, Chain, Clip, Gaussian, LightSplit, Noise

SECRET = 20240229


def activations(count, shape, seed=0):
    """Smooth, positive maps with few strong features, like those behind a ReLU."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, shape[0], 3, 3, generator=draw) + 0.5
    smooth = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bilinear")
    return (smooth + 0.05 * torch.randn(count, *shape, generator=draw)).relu()


def sends(module, z):
    return module(z, Batch(torch.zeros(len(z), 1), torch.zeros(len(z), dtype=torch.long))).seen


def observed(guard, shape, count=400, seed=0):
    module = guard.build(shape, 0, SECRET)
    return module, sends(module, activations(count, shape, seed))


def alike(found, true):
    """The least |<q_i, q̂_i>|; signs cancel in the transform."""
    return float((found.double() * true.double()).sum(1).abs().min())


@pytest.mark.parametrize("gram", ["row", "column"])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 6, 9)], ids=str)
def test_the_rank_of_a_map_shows_the_first_vectors_of_the_key(gram, shape):
    module, seen = observed(SEAL(energy=0.7, gram=gram), shape)
    maps = seen.double().reshape(-1, *shape[1:])
    found = spans(maps[maps.flatten(1).norm(dim=1) > 0])
    assert len(found) >= 3
    for side, rank, projector, count in found:
        q = (module.transform.left, module.transform.right)[side][:rank].double()
        assert count >= 5
        # One map is exact; of the mean, some maps in a hundred are of another rank than they look.
        torch.testing.assert_close(projector, q.T @ q, atol=0.02, rtol=0)


KEYS = [
    SEAL(energy=0.7, gram="row"),
    SEAL(energy=0.9, gram="row"),
    SEAL(energy=0.7, gram="column"),
    SEAL(energy=0.9, gram="column"),
    SEAL(energy=0.7, fixed=True),
    SEAL(energy=0.8, gram="row", fixed=True),
]
SHAPES = [(3, 8, 8), (3, 6, 9)]
# Every second key, at one shape or the other in turn: each kind of key (row, column, fixed) is there.
IN_TURN = [(guard, SHAPES[turn % 2]) for turn, guard in enumerate(KEYS[::2])]


@pytest.mark.parametrize(("guard", "shape"), and_the_rest(IN_TURN, KEYS, SHAPES), ids=repr)
def test_the_whole_key_is_recovered_and_its_copy_sends_what_the_client_sends(guard, shape):
    module, seen = observed(guard, shape)
    state = torch.get_rng_state()
    key = recover(seen, guard, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert min(alike(key.left, module.transform.left), alike(key.right, module.transform.right)) > 0.995
    assert key.empty > 0.05
    copy = guard.build(shape, 0, 777)
    z = activations(50, shape, seed=9)
    other = sends(copy, z)
    install(key, copy)
    expected = sends(module, z)
    error = (sends(copy, z) - expected).norm() / expected.norm()
    # Where a prefix ends jumps: a key that is nearly right sends nearly the same, but for a few coefficients.
    assert error < 0.2 < (other - expected).norm() / expected.norm()


def test_clipped_messages_show_the_same_key():
    shape, guard = (3, 8, 8), SEAL(energy=0.7, gram="row")
    module, seen = observed(guard, shape)
    lengths = seen.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    key = recover(seen * (0.1 / lengths).clamp(max=1), guard, seed=1)
    assert alike(key.left, module.transform.left) > 0.999


def test_no_key_is_made_up_where_nothing_shows():
    guard = SEAL(energy=0.7)
    _, seen = observed(guard, (3, 8, 8))
    assert recover(seen + 0.1 * torch.randn(seen.shape, generator=torch.Generator().manual_seed(0)), guard, 1) is None
    assert recover(torch.zeros(4, 3, 8, 8), guard, 1) is None
    full = torch.randn(400, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert recover(full, SEAL(energy=0.7, fixed=True), 1) is None


@pytest.mark.parametrize(
    ("guard", "shape", "expected"),
    [
        (SEAL(), (4, 5, 5), True),
        (Chain(SEAL(), Clip(norm=1.0), WCC(weight=0.1)), (4, 5, 5), True),
        (Chain(LightSplit(ratio=4), SEAL(fixed=True)), (4, 5, 5), True),
        (Chain(LightSplit(ratio=4), SEAL()), (4, 5, 5), False),  # one row: no rank
        (Chain(SEAL(), LightSplit(ratio=4)), (4, 5, 5), False),
        (Chain(SEAL(), Noise(scale=0.1)), (4, 5, 5), False),
        (Chain(SEAL(), Clip(norm=1.0), Gaussian(epsilon=8)), (4, 5, 5), False),
        (SEAL(energy=1.0), (4, 5, 5), False),  # nothing is left out
        (SEAL(wave="triangle"), (4, 5, 5), False),  # no secret
        (LightSplit(ratio=4), (4, 5, 5), False),
    ],
    ids=repr,
)
def test_where_a_key_can_be_read_off(guard, shape, expected):
    assert recoverable(guard, shape) is expected


@pytest.mark.parametrize(
    ("guard", "keyed"),
    [(SEAL(), True), (SEAL(wave="cosine"), False), (Chain(Clip(norm=1.0), SEAL()), True), (Noise(scale=1.0), False)],
    ids=repr,
)
def test_which_guards_have_a_key(guard, keyed):
    assert guard.has_key is keyed
