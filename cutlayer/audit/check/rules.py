"""Laws of rules."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from ...rules.base import Rule, Update
from ...training.laws import keeps_names_and_shapes, need, toy_state, where_nobody_moved_nothing_does
from .toys import Skipped


def _came(rule: Rule) -> list[Update]:
    return [Update(toy_state(1 + place), 3 + 2 * place) for place in range(max(4, rule.least))]


def _net(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in state.items() if name.startswith("net.")}


def alike_comes_out(rule: Rule) -> None:
    """where all bring the same, that comes out, or a step towards it"""
    if not rule.merges:
        raise Skipped("it merges nothing")
    after = rule(toy_state(0), [Update(toy_state(1), 5)] * max(4, rule.least))
    if any(name.startswith(("rule.", "control.")) for name in after):
        raise Skipped("it remembers something, so where it goes hangs on what came before")
    begin, end = _net(toy_state(0)), _net(toy_state(1))
    for name, tensor in _net(after).items():
        share = ((tensor - begin[name]) / (end[name] - begin[name])).flatten()
        need(
            bool((share > 0).all() and (share < 1 + 1e-4).all() and (share.max() - share.min()) < 1e-3),
            f"all clients bring the same {name}, and something else comes out",
        )


def order_does_not_matter(rule: Rule) -> None:
    """the order in which updates come does not matter"""
    if not rule.merges:
        raise Skipped("it hands on the last one")
    came = _came(rule)
    results = [_net(rule(toy_state(0), [came[place] for place in order])) for order in _orders(len(came))]
    for one, other in pairwise(results):
        differ = [name for name in one if not torch.allclose(one[name], other[name], atol=1e-5)]
        need(not differ, f"{', '.join(differ)} hang on who came first")


def _orders(count: int) -> list[list[int]]:
    forward = list(range(count))
    return [forward, forward[::-1], [*forward[1:], 0]]


def writes_into_nothing(rule: Rule) -> None:
    """it writes into nothing that it is given"""
    current, came = toy_state(0), _came(rule)
    rule(current, came)
    for given, seed in [(current, 0), *((update.state, 1 + place) for place, update in enumerate(came))]:
        for name, tensor in toy_state(seed).items():
            need(torch.equal(given[name], tensor), f"it changed {name} in place: make new tensors")


def nothing_comes_nothing_changes(rule: Rule) -> None:
    """without updates the state stays"""
    after = rule(toy_state(0), [])
    need(
        after.keys() == toy_state(0).keys() and all(torch.equal(after[name], t) for name, t in toy_state(0).items()),
        "without updates something changed: return dict(current) where there are none",
    )


LAWS = (
    keeps_names_and_shapes,
    where_nobody_moved_nothing_does,
    alike_comes_out,
    order_does_not_matter,
    writes_into_nothing,
    nothing_comes_nothing_changes,
)
