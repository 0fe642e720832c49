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


@pytest.mark.parametrize(("z", "u"), [((4, 3, 3, 3), (5,)), ((11,), (5, 2, 2)), ((4, 9), (5, 2, 2))])
def test_where_none_fits_it_is_said(z, u):
    with pytest.raises(ValueError, match="maps, series or vectors"):
        local_network(z, u, 8)
