"""Large images are evaluated a few at a time: a message of 500 of them would not fit anywhere."""

from dataclasses import replace

import pytest
import torch
from toys import tiny_plan

from cutlayer.data.base import Samples
from cutlayer.guards import KAnonymous
from cutlayer.training.evaluation import EVALUATION_BATCH, _batches


@pytest.mark.parametrize(("side", "most"), [(12, 500), (64, 500), (128, 125), (640, 5), (2000, 2)])
def test_a_message_has_no_more_pixels_than_500_images_of_64(side, most):
    count = 600 if side < 200 else 9
    samples = Samples(torch.zeros(count, 1, 1, 1).expand(-1, 1, side, side), torch.zeros(count).long())
    plan = tiny_plan()
    sizes = [len(index) for index, _ in _first(_batches(plan, samples, lambda number: number, EVALUATION_BATCH))]
    assert sizes[0] == most
    mixing = replace(plan, guard=KAnonymous(k=3))
    sizes = [len(index) for index, _ in _first(_batches(mixing, samples, lambda number: number, EVALUATION_BATCH))]
    assert sizes[0] == min(len(samples), plan.batch_size)  # as it was trained


def _first(batches):
    return [next(iter(batches))]
