"""Within-class compaction against its definition, and the figure that shrinking cannot fool."""

import pytest
import torch

from cutlayer.core.batch import Batch
from cutlayer.guards import WCC, Chain, Subset
from cutlayer.guards.wcc import within_class_scatter
from cutlayer.metrics import scatter_ratio


def slow(seen, y):
    """Eq. 10 as it is printed."""
    total = torch.zeros(())
    for label in y.unique():
        rows = seen[y == label].flatten(1)
        total = total + (rows - rows.mean(0)).square().sum(1).mean()
    return total


@pytest.mark.usefixtures("double")
def test_it_is_the_printed_formula():
    seen, y = torch.randn(9, 3, 2), torch.tensor([4, 0, 4, 7, 0, 4, 0, 0, 7])
    torch.testing.assert_close(within_class_scatter(seen, y), slow(seen, y))


@pytest.mark.usefixtures("double")
def test_its_gradient_is_twice_the_deviation_over_the_class_size():
    seen, y = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 0, 1, 1, 2])
    (grad,) = torch.autograd.grad(within_class_scatter(seen, y), seen)
    for row in range(6):
        members = seen[y == y[row]]
        torch.testing.assert_close(grad[row], 2 * (seen[row] - members.mean(0)) / len(members))


def test_a_class_with_one_sample_adds_nothing():
    assert within_class_scatter(torch.randn(4, 5), torch.arange(4)).item() == 0


def test_the_scatter_ratio_ignores_scale_and_knows_its_ends():
    y = torch.arange(40) % 4
    noise = torch.randn(40, 6)
    assert scatter_ratio(noise, y) == pytest.approx(scatter_ratio(1e-3 * noise, y))
    assert scatter_ratio(torch.eye(4)[y], y) == pytest.approx(0)
    assert scatter_ratio(noise, y) > 0.7


@pytest.mark.parametrize("weight", [-0.1, float("inf"), float("nan")])
def test_an_impossible_weight_is_refused(weight):
    with pytest.raises(ValueError, match="WCC's weight"):
        WCC(weight=weight)


def test_penalties_of_a_chain_add_up():
    seen, y = torch.randn(6, 4, 2, 2), torch.tensor([0, 1, 0, 1, 1, 2])
    chain = Chain(WCC(weight=0.25), Subset(ratio=2), WCC(weight=2.0))
    sent, penalty, *_ = chain.build((4, 2, 2), 1, 2)(seen, Batch(seen, y))
    expected = 0.25 * within_class_scatter(seen, y) + 2.0 * within_class_scatter(sent, y)
    torch.testing.assert_close(penalty["WCC"], expected)
