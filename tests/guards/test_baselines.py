"""The two baselines: a random subset of coordinates and a learned 1x1 bottleneck."""

import pytest
import torch
from toys import batches

from cutlayer.guards import Bottleneck1x1, Chain, LightSplit, Subset


@pytest.mark.parametrize(
    ("channels", "ratio", "kept"), [(64, 8, 8), (64, 32, 2), (20, 8, 2), (20, 32, 1), (29, 8, 3), (29, 16, 1)]
)
def test_the_bottleneck_has_the_channels_of_table_9(channels, ratio, kept):
    assert Bottleneck1x1(ratio=ratio).out_shape((channels, 12, 12)) == (kept, 12, 12)


def test_the_bottleneck_needs_a_map_and_says_what_it_got():
    with pytest.raises(ValueError, match=r"needs a cut of channels x height x width; this one is \(50,\)"):
        Chain(LightSplit(ratio=2), Bottleneck1x1(ratio=2)).out_shape((4, 5, 5))


def test_a_subset_sends_coordinates_and_puts_them_back():
    guard, z = Subset(ratio=4), torch.randn(6, 4, 5, 5)
    seen = guard.build((4, 5, 5), 1, 2)(z, batches(1)[0]).seen
    back = guard.lift((4, 5, 5), 1)(seen)
    chosen = back != 0
    assert chosen.flatten(1).sum(1).tolist() == [25] * 6
    assert torch.equal(back[chosen], z[chosen])
    assert (chosen == chosen[0]).all(), "the same coordinates for every sample"
