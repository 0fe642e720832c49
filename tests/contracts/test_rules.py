"""Laws that hold for every rule. A new rule adds one line to RULES."""

import pytest
import torch

from cutlayer.rules import Latest, Update
from cutlayer.spec import spec

RULES = [Latest()]
all_rules = pytest.mark.parametrize("rule", RULES, ids=repr)


def state(seed):
    draw = torch.Generator().manual_seed(seed)
    return {"net.w": torch.randn(3, 2, generator=draw), "net.n": torch.tensor(seed)}


@all_rules
def test_identical_updates_give_that_update(rule):
    merged = rule(state(0), [Update(state(1), 5), Update(state(1), 7)])
    assert merged.keys() == state(1).keys()
    torch.testing.assert_close(merged["net.w"], state(1)["net.w"])


@all_rules
def test_it_writes_into_nothing_it_is_given(rule):
    current, updates = state(0), [Update(state(1), 5), Update(state(2), 7)]
    rule(current, updates)
    for given, fresh in ((current, 0), (updates[0].state, 1), (updates[1].state, 2)):
        assert torch.equal(given["net.w"], state(fresh)["net.w"])


@all_rules
def test_its_text_is_itself(rule):
    assert spec(repr(rule), "rules") == rule
