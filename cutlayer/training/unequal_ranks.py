"""Adapters of unequal ranks, merged: each client is sent its own first rows, and what it lacks counts as unchanged.

The shared state has the largest rank. Zeros in place of what a client lacks (HetLoRA, Cho et al. 2024) would shrink
the rows that few clients have a little more in every round; left as they were, those rows move by a smaller share.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from ..core.seeds import derive, seeded
from ..core.state import State
from ..nets.lora import DOWN, UP
from ..rules.base import NET
from .plan.plan import Plan


def narrowed(plan: Plan, client: int, state: Mapping[str, Tensor]) -> State:
    """What this client's network has of a state of the largest rank."""
    found = dict(state)
    if plan.unequal_ranks:
        for name, along in _adapters(found):
            found[name] = found[name].narrow(along, 0, min(_rank(plan, client), found[name].shape[along]))
    return found


def widened(plan: Plan, client: int, brought: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> State:
    """What a client of this rank brought, over what there was. Whatever has another shape is left to be refused."""
    found = dict(brought)
    if plan.unequal_ranks:
        for name, along in _adapters(found):
            own, whole = found[name], current.get(name)
            if whole is None or own.shape != narrowed(plan, client, {name: whole})[name].shape:
                continue
            found[name] = whole.clone()
            found[name].narrow(along, 0, own.shape[along]).copy_(own)
    return found


def started(plan: Plan, brought: Mapping[str, Tensor]) -> State:
    """The first client's adapters at the largest rank: rows that it lacks start as any do, from the public seed."""
    found = dict(brought)
    if plan.unequal_ranks:
        assert plan.adapters is not None
        for name, along in _adapters(found):
            own, shape = found[name], list(found[name].shape)
            shape[along] = plan.adapters.largest
            whole = own.new_zeros(shape)
            if name.endswith(DOWN):
                with seeded(derive(plan.seed, "adapters", name)):
                    nn.init.kaiming_uniform_(whole, a=5**0.5)
            whole.narrow(along, 0, own.shape[along]).copy_(own)
            found[name] = whole
    return found


def _rank(plan: Plan, client: int) -> int:
    assert plan.adapters is not None
    return plan.adapters.rank_of(client)


def _adapters(state: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    """Names of adapters, and the dimension along which their rank lies."""
    for name in list(state):
        if name.startswith(NET) and name.endswith((DOWN, UP)):
            yield name, 0 if name.endswith(DOWN) else 1
