"""Laws of rules."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from ...rules.base import Rule, Update
from ...training.laws import (
    keeps_names_and_shapes,
    need,
    toy_state,
    toy_updates,
    where_nobody_moved_nothing_does,
)
from .toys import Skipped


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


def order_does_not_matter(rule: Rule, dtype: torch.dtype = torch.float32, most: float = 1e-5) -> None:
    """the order in which updates come does not matter"""
    if not rule.merges:
        raise Skipped("it hands on the last one")
    came = toy_updates(rule, dtype)
    results = [_net(rule(toy_state(0, dtype), [came[place] for place in order])) for order in _orders(len(came))]
    for one, other in pairwise(results):
        differ = [name for name in one if not torch.allclose(one[name], other[name], rtol=most, atol=most)]
        need(not differ, f"{', '.join(differ)} hang on who came first")


def _orders(count: int) -> list[list[int]]:
    forward = list(range(count))
    return [forward, forward[::-1], [*forward[1:], 0]]


def writes_into_nothing(rule: Rule) -> None:
    """it writes into nothing that it is given, and what a merge gives back is new"""
    begun = rule(toy_state(0), toy_updates(rule))
    memory = {name: tensor for name, tensor in begun.items() if not name.startswith(("net.", "stat."))}
    current, came = {**toy_state(0), **memory}, toy_updates(rule)
    kept = {name: tensor.clone() for name, tensor in current.items()}
    after = rule(current, came)
    if rule.merges:  # a relay hands on the very tensors that came
        for tensor in after.values():
            tensor.add_(1)
    untouched = toy_updates(rule)
    for given, before in [(current, kept), *zip([u.state for u in came], [u.state for u in untouched], strict=True)]:
        for name, tensor in before.items():
            need(torch.equal(given[name], tensor), f"it changed {name} in place, or gave it back: make new tensors")


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
