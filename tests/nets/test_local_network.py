"""The local network: it leads from z to u whatever their shapes, and as wide as it may cost."""

import pytest
import torch

from cutlayer.nets.base import count_macs
from cutlayer.nets.local import MOST_WIDTH, local_macs, local_network, widest

SHAPES = {
    "map to vector": ((4, 9, 7), (5,)),
    "map to map": ((4, 9, 7), (6, 3, 2)),
    "map to a larger map": ((4, 3, 3), (6, 8, 8)),
    "series to vector": ((3, 17), (5,)),
    "series to series": ((3, 17), (2, 4)),
    "one place": ((8, 1, 1), (5,)),
    "vector to vector": ((11,), (5,)),
}
each_shape = pytest.mark.parametrize(("z", "u"), SHAPES.values(), ids=SHAPES)


@each_shape
def test_it_leads_from_z_to_u_and_every_weight_learns(z, u):
    net = local_network(z, u, width=6)
    found = net(torch.randn(4, *z))
    assert tuple(found.shape) == (4, *u)
    (found * torch.randn_like(found)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.one_in(3)
@each_shape
def test_the_widest_fits_and_one_wider_does_not(z, u):
    for macs in (local_macs(z, u, 1), 5 * local_macs(z, u, 3) // 2):
        width = widest(z, u, macs)
        assert width >= 1 and count_macs(local_network(z, u, width), z) <= macs < local_macs(z, u, width + 1)
    assert widest(z, u, local_macs(z, u, 1) - 1) == 0
    assert widest((2,), (2,), 10**9) == MOST_WIDTH


@pytest.mark.parametrize("u", [(5,), (7, 5)], ids=str)
def test_of_tokens_it_reads_the_mean_of_the_words(u):
    net = local_network((7, 3), u, width=6, tokens=True)
    z, mask = torch.randn(4, 7, 3), torch.arange(7) < torch.tensor([[7], [3], [1], [0]])
    found = net(z, mask=mask, skips=torch.zeros(4))
    assert tuple(found.shape) == (4, *u) and torch.equal(net(z), net(z, mask=torch.ones(4, 7)))
    moved = torch.where(mask[:, :, None], z, 9.0)
    assert torch.equal(net(moved, mask=mask), found), "padding says nothing"
    assert torch.allclose(net(moved.flip(1), mask=mask.flip(1)), found), "nor does a word's place"
    first = found if len(u) == 1 else found[:, 0]
    assert all(torch.equal(first, place) for place in found.unbind(1)) or len(u) == 1
    assert torch.allclose(first[1], net.layers(z[1, :3].mean(0)), atol=1e-6)
    macs = local_macs((7, 3), u, 6, tokens=True)
    assert macs == 3 * 6 + 6 * 5 and widest((7, 3), u, macs, tokens=True) == 6


@pytest.mark.parametrize(("z", "u"), [((4, 3, 3, 3), (5,)), ((11,), (5, 2, 2)), ((4, 9), (5, 2, 2))])
def test_where_none_fits_it_is_said(z, u):
    with pytest.raises(ValueError, match="maps, series or vectors"):
        local_network(z, u, 8)
