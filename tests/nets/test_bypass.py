"""The home stream of a bypass: what stayed at home meets what came back, whatever the shapes of the two."""

import pytest
import torch
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, conv1d, conv2d, relu

from cutlayer.nets.bypass import FUSIONS, Averages, Rejoin

SHAPES = [  # home, u
    ((6, 9, 7), (5, 3, 2)),
    ((6, 4, 4), (5, 4, 4)),
    ((6, 3, 3), (5, 6, 6)),  # a body may enlarge
    ((6, 9, 7), (5,)),
    ((6, 1, 2), (5,)),
    ((6, 11), (5, 4)),
    ((6, 11), (5,)),
    ((6,), (5,)),
    ((6, 4, 4), (5, 8)),  # maps became a sequence
    ((6, 8), (5, 2, 2)),
    ((6,), (5, 2, 2)),
]


def both(home, u, count=3):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(count, *u, generator=draw), torch.randn(count, *home, generator=draw)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize(("home", "u"), SHAPES)
def test_it_has_the_shape_of_u_and_both_streams_learn(home, u, fusion):
    rejoin = Rejoin(home, u, fusion)
    theirs, ours = (stream.requires_grad_() for stream in both(home, u))
    fused = rejoin(theirs, ours)
    assert fused.shape == theirs.shape
    fused.square().sum().backward()
    assert theirs.grad.any() and ours.grad.any()
    assert all(weight.grad is not None and weight.grad.any() for weight in rejoin.parameters())


@pytest.mark.parametrize(("home", "u"), SHAPES)
def test_samples_stay_apart(home, u):
    rejoin, (theirs, ours) = Rejoin(home, u, "hybrid"), both(home, u)
    torch.testing.assert_close(rejoin(theirs, ours)[1:2], rejoin(theirs[1:2], ours[1:2]))


def by_hand(rejoin, u, home, fusion):
    """Maps that meet maps, from torch's own functions."""
    seen = relu(conv2d(home, rejoin.look[0].weight, rejoin.look[0].bias, stride=2, padding=1))
    seen = adaptive_avg_pool2d(seen, u.shape[2:])
    ours = conv2d(seen, rejoin.mix.weight[..., None], rejoin.mix.bias)
    if fusion == "residual":
        return u + ours
    mixed = conv2d(torch.cat([u, ours], 1), rejoin.fuse.weight[..., None], rejoin.fuse.bias)
    return mixed if fusion == "concat" else mixed + u


@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_fusions_are_the_thesis(fusion):
    """Sec. 3.3.4: u + z', conv(cat[u, z']), conv(cat[u, z']) + u."""
    rejoin, (u, home) = Rejoin((6, 9, 7), (5, 3, 2), fusion), both((6, 9, 7), (5, 3, 2))
    torch.testing.assert_close(rejoin(u, home), by_hand(rejoin, u, home, fusion))


def test_a_vector_meets_a_coarse_grid_of_the_maps():
    """One mean a channel would not tell two pictures apart that differ only in where things are."""
    rejoin, (u, home) = Rejoin((6, 20, 14), (5,)), both((6, 20, 14), (5,))
    seen = relu(conv2d(home, rejoin.look[0].weight, rejoin.look[0].bias, stride=2, padding=1))
    grid = adaptive_avg_pool2d(seen, (4, 4)).flatten(1)
    torch.testing.assert_close(
        rejoin(u, home), u + conv1d(grid[..., None], rejoin.mix.weight, rejoin.mix.bias)[..., 0]
    )
    assert not torch.allclose(rejoin(u, home), rejoin(u, home.flip(2)))


@pytest.mark.parametrize(("space", "size"), [((9, 7), (3, 2)), ((5, 5), (4, 4)), ((2, 3), (5, 4)), ((8, 8), (1, 1))])
def test_averages_are_torchs_adaptive_ones(space, size):
    home = torch.randn(2, 3, *space)
    torch.testing.assert_close(Averages(space, size)(home), adaptive_avg_pool2d(home, size).flatten(2))
    line = home.flatten(2)
    torch.testing.assert_close(Averages(line.shape[2:], size[:1])(line), adaptive_avg_pool1d(line, size[0]))


def test_what_a_relay_hands_on_has_no_fixed_matrices_in_it():
    assert {name.split(".")[0] for name in Rejoin((6, 9, 7), (5, 3, 2), "hybrid").state_dict()} == {
        "look",
        "mix",
        "fuse",
    }
