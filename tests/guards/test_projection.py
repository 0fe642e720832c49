"""The identities of an orthonormal projection, and that the fast one is its own dense matrix."""

import pytest
import torch

from cutlayer.guards.parts.projection import Dense, Fast, factors

SIZES = [(4096, 512), (2880, 360), (1152, 144), (5684, 710), (1009, 100), (12, 12), (7, 1)]
KINDS = [Dense(), Fast()]
sizes = pytest.mark.parametrize(("width", "kept"), SIZES)
kinds = pytest.mark.parametrize("kind", KINDS, ids=repr)


def matrix(projection, width):
    return projection.down(torch.eye(width))


@pytest.mark.one_in(2)
@kinds
@sizes
def test_columns_are_orthonormal_in_float32(kind, width, kept):
    R = matrix(kind.build(width, kept, seed=3), width)
    assert R.shape == (width, kept) and R.dtype == torch.float32
    assert (R.T @ R - torch.eye(kept)).abs().max() <= 1e-5


@pytest.mark.usefixtures("double")
@kinds
def test_columns_are_orthonormal_in_float64(kind):
    R = matrix(kind.build(576, 72, seed=3), 576)
    assert (R.T @ R - torch.eye(72)).abs().max() <= 1e-12


@kinds
def test_lifting_back_is_a_projection(kind):
    P = matrix(kind.build(576, 72, seed=3), 576)
    P = P @ P.T
    torch.testing.assert_close(P @ P, P, atol=1e-5, rtol=0)
    torch.testing.assert_close(P, P.T, atol=1e-6, rtol=0)
    assert P.trace().item() == pytest.approx(72, abs=1e-2)


@kinds
def test_the_all_ones_direction_is_not_preferred(kind):
    """‖P1‖² ≈ k/d. A U(0,1) matrix keeps it almost whole, and activations after a ReLU are mostly that direction."""
    width, kept = 4096, 512
    ones = torch.ones(1, width) / width**0.5
    energy = sum(kind.build(width, kept, seed).down(ones).square().sum().item() for seed in range(5)) / 5
    assert energy == pytest.approx(kept / width, rel=0.2)
    assert Dense(uniform=True).build(width, kept, 0).down(ones).square().sum().item() > 0.9


@sizes
def test_the_fast_projection_agrees_with_its_own_matrix(width, kept):
    fast = Fast().build(width, kept, seed=3)
    R, z, s = matrix(fast, width), torch.randn(5, width), torch.randn(5, kept)
    torch.testing.assert_close(fast.down(z), z @ R, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fast.up(s), s @ R.T, atol=1e-4, rtol=1e-4)


@kinds
def test_the_seed_is_all_there_is(kind):
    z = torch.randn(2, 576)
    assert torch.equal(kind.build(576, 72, 1).down(z), kind.build(576, 72, 1).down(z))
    assert not torch.allclose(kind.build(576, 72, 1).down(z), kind.build(576, 72, 2).down(z))
    assert not kind.build(576, 72, 1).state_dict(), "a matrix that follows from a seed is not stored or sent"


@sizes
def test_factors_cover_what_is_kept_with_little_waste(width, kept):
    (a, b), (ka, kb) = factors(width, kept)
    assert a * b == width and ka <= a and kb <= b
    assert kept <= ka * kb <= max(1.3 * kept, kept + b)
