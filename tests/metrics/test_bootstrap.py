"""Intervals against a slow twin, against theory, and for samples that belong together."""

import math
import random
from statistics import mean, stdev

import pytest
import torch

from cutlayer.core.seeds import derive, generator
from cutlayer.metrics import bootstrap
from cutlayer.metrics.bootstrap import DRAWS, interval, redrawn, redrawn_areas, tail


def drawn(count, seed, low=0.0, high=1.0):
    draw = random.Random(seed)
    return [draw.uniform(low, high) for _ in range(count)]


@pytest.mark.parametrize("units", [None, [n // 3 for n in range(20)], [5, 5, 9, *range(10, 27)]])
@pytest.mark.parametrize("cells", [2**22, 100])
def test_draws_are_those_of_a_slow_twin(monkeypatch, units, cells):
    monkeypatch.setattr(bootstrap, "CELLS", cells)
    bootstrap._redrawn.cache_clear()
    scores = drawn(20, 1)
    groups = {}
    for place, unit in enumerate(range(20) if units is None else units):
        groups.setdefault(unit, []).append(scores[place])
    groups = list(groups.values())
    found, draw, size = redrawn(scores, units, 7), generator(7), max(1, cells // 20)
    number = 0
    for first in range(0, DRAWS, size):
        for picked in torch.randint(len(groups), (min(size, DRAWS - first), len(groups)), generator=draw).tolist():
            sample = sorted((score for unit in picked for score in groups[unit]), reverse=True)
            if number % 97 == 0:
                assert float(found["value"][number]) == pytest.approx(mean(sample))
                assert float(found["above_half"][number]) == pytest.approx(mean(score > 0.5 for score in sample))
                assert float(found["p90"][number]) == sample[max(1, len(sample) // 10) - 1]
            number += 1
    assert number == DRAWS == len(found["value"])


def test_the_interval_of_a_mean_is_that_of_theory():
    scores = drawn(200, 2)
    low, high = interval(redrawn(scores, None, 0)["value"])
    half = 1.96 * stdev(scores) / math.sqrt(200)
    assert low < mean(scores) < high and (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_samples_that_share_a_message_count_once():
    """Five copies of forty observations are as sure as the forty, and not as two hundred."""
    scores = drawn(40, 3)
    copies = [score for score in scores for _ in range(5)]
    alone, shared, naive = (
        interval(redrawn(values, units, 0)["value"])
        for values, units in ((scores, None), (copies, [n // 5 for n in range(200)]), (copies, None))
    )
    assert shared == pytest.approx(alone)
    assert (naive[1] - naive[0]) * math.sqrt(5) == pytest.approx(alone[1] - alone[0], rel=0.15)


def test_the_tail_is_what_one_image_in_ten_reaches():
    for count in (10, 19, 100, 256):
        scores = torch.zeros(count)
        scores[: count // 10] = 1
        assert tail(scores) == 1
        scores[0] = 0
        assert tail(scores) == 0
    assert tail(torch.tensor([0.2, 0.7, 0.5])) == pytest.approx(0.7), "of a few, the best"


def test_the_area_under_the_curve_has_an_interval():
    members, strangers = drawn(60, 4, 0.3, 1.0), drawn(50, 5)
    area = mean((m > s) + 0.5 * (m == s) for m in members for s in strangers)
    found = redrawn_areas(members, strangers, (None, None), 0)["value"]
    low, high = interval(found)
    assert low < area < high and high - low < 0.25
    left = torch.randint(60, (DRAWS, 60), generator=generator(0))
    right = torch.randint(50, (DRAWS, 50), generator=generator(derive(0, "strangers")))
    for number in (0, 3, 1999):
        ours, theirs = [members[n] for n in left[number]], [strangers[n] for n in right[number]]
        assert float(found[number]) == pytest.approx(mean((m > s) + 0.5 * (m == s) for m in ours for s in theirs))


def test_the_same_seed_draws_the_same():
    scores = drawn(30, 6)
    assert torch.equal(redrawn(scores, None, 1)["value"], redrawn(list(scores), None, 1)["value"])
    assert not torch.equal(redrawn(scores, None, 1)["value"], redrawn(scores, None, 2)["value"])
