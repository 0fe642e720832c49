"""LightSplit's own facts: widths, counts of the learned lift, and what the server learns."""

import pytest
import torch
from toys import batches

from cutlayer.guards import WCC, Bottleneck1x1, Chain, LightSplit, NoGuard, Subset
from cutlayer.guards.parts.projection import Dense
from cutlayer.nets.base import count_parameters


@pytest.mark.parametrize(
    ("ratio", "shape", "kept"),
    [(8, (64, 8, 8), 512), (8, (29, 14, 14), 710), (16, (29, 14, 14), 355), (32, (29, 14, 14), 177)],
)
def test_k_is_the_floor_of_d_over_the_ratio(ratio, shape, kept):
    assert LightSplit(ratio=ratio).out_shape(shape) == (kept,)


def test_the_learned_lift_has_the_parameters_of_table_2():
    assert count_parameters(LightSplit(ratio=8, hidden=512).lift((64, 8, 8), 0)) == 2_364_928


def test_the_fixed_lift_has_none():
    assert count_parameters(LightSplit(ratio=8).lift((64, 8, 8), 0)) == 0


@pytest.mark.parametrize("guard", [LightSplit(ratio=4), LightSplit(ratio=4, projection=Dense())], ids=repr)
def test_the_server_gets_exactly_the_projection_of_z(guard):
    z = torch.randn(6, 4, 5, 5)
    lifted = guard.lift((4, 5, 5), 1)(guard.build((4, 5, 5), 1, 2)(z, batches(1)[0]).seen)
    again = guard.lift((4, 5, 5), 1)(guard.build((4, 5, 5), 1, 2)(lifted, batches(1)[0]).seen)
    torch.testing.assert_close(again, lifted, atol=1e-5, rtol=0)  # P² = P
    torch.testing.assert_close((z * lifted).sum(), lifted.square().sum(), atol=1e-3, rtol=1e-4)  # zᵀPz = ‖Pz‖²


@pytest.mark.parametrize("kind", [LightSplit, Subset])
def test_an_impossible_ratio_is_refused_with_the_range(kind):
    with pytest.raises(ValueError, match="1 to 100 here"):
        kind(ratio=101).out_shape((4, 5, 5))


@pytest.mark.parametrize("ratio", [0, -1, 0.5, float("nan"), float("inf"), "8", None])
@pytest.mark.parametrize("kind", [LightSplit, Subset, Bottleneck1x1])
def test_what_is_no_ratio_at_any_cut_is_refused_when_it_is_typed(kind, ratio):
    """A server knows its cut once the first client is there: it waited for clients with such a guard."""
    with pytest.raises(ValueError, match=f"{kind.__name__}'s ratio is .* a number from 1 up; got"):
        kind(ratio=ratio)


def test_a_chain_flattens_and_gives_later_parts_their_own_seed():
    first, second = LightSplit(ratio=2), LightSplit(ratio=2)
    chain = Chain(Chain(first), second)
    assert chain.parts == (first, second)
    z = torch.randn(3, 4, 4, 4)
    once = first.build((4, 4, 4), 9, 0)(z, batches(1)[0]).seen
    assert not torch.allclose(
        chain.build((4, 4, 4), 9, 0)(z, batches(1)[0]).seen[:, :4],
        first.build((32,), 9, 0)(once, batches(1)[0]).seen[:, :4],
    )


def test_a_chain_of_nothing_or_of_strangers_is_refused():
    with pytest.raises(ValueError, match="Chain takes guards"):
        Chain()
    with pytest.raises(ValueError, match="Chain takes guards"):
        Chain(LightSplit(ratio=2), 3)


def test_a_chain_can_be_undone_where_every_part_that_changes_the_shape_can():
    shape = (4, 5, 5)
    undo = Chain(NoGuard(), LightSplit(ratio=4), WCC(weight=0.1)).undo(shape, 1)
    assert undo(torch.randn(2, 25)).shape == (2, *shape)
    assert Chain(Bottleneck1x1(ratio=2), LightSplit(ratio=4)).undo(shape, 1) is None
    assert Chain(NoGuard(), WCC(weight=0.1)).undo(shape, 1) is None
