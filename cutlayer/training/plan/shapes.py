"""All shapes of a plan along the cut, and whether a guard fits them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from math import ceil

import torch
from torch import nn

from ...core.batch import Task as Task
from ...core.batch import made_up
from ...core.features import Form, features
from ...core.outside import is_outside
from ...core.seeds import seeded
from ...nets.base import Net, Shapes, beside, hashable, shapes
from ...nets.bypass import turned
from ...nets.lora import LoRA
from ..laws import refuse_broken
from ..protocols import Cut
from .plan import Plan
from .roles import SendOnce


def cut_shapes(plan: Plan, task: Task) -> Cut:
    """All shapes of a plan; a guard or net that does not fit refuses here, before anything is built."""
    plan.net.check(task.shape)
    plan.net.check_vocabulary(task.vocabulary)
    (z, u), named = _net_shapes(plan, task)
    tokens = len(z) == 2 and plan.net.in_tokens(task.shape)
    shared = plan.protocol.shared_shape(turned(z) if tokens else z, plan.guard)
    shared = turned(shared) if tokens else shared
    cut = Cut(z, shared, plan.guard.out_shape(shared), u, named, tokens)
    _refuse_unfit_guard(plan, task, cut)
    if plan.adapters is not None:
        fits = _known_to_fit if hashable(plan.net) else _refuse_unfit_adapters
        fits(plan.adapters, plan.net, task.shape, task.classes, plan.fixed_parts)
    refuse_broken([getattr(plan, one.name) for one in fields(plan)], shared, task)
    return cut


def _net_shapes(plan: Plan, task: Task) -> tuple[Shapes, Mapping[str, Form]]:
    try:
        return shapes(plan.net, task.shape), beside(plan.net, task.shape)
    except (RuntimeError, TypeError, AttributeError) as error:
        if not is_outside(type(plan.net)):
            raise
        raise ValueError(f"head and body of {plan.net!r} do not fit inputs of {task.shape}: {error}") from error


def _refuse_unfit_guard(plan: Plan, task: Task, cut: Cut) -> None:
    guard = plan.guard
    if cut.beside and (mixing := [part for part in guard.stages() if part.mixes_samples]):
        raise ValueError(
            f"{mixing[0]} lets samples share what leaves, and {plan.net!r} sends {' and '.join(cut.beside)} of each "
            "beside it: take a network that sends nothing beside it (pad='fixed'), or another guard"
        )
    if missing := [name for name in guard.attributes if name not in task.attributes]:
        known = f"it has {', '.join(task.attributes)}" if task.attributes else "it has none"
        raise ValueError(f"{guard} protects {missing[0]!r}, an attribute this data does not have; {known}")
    pictured = [part for part in guard.stages() if part.reads_pictures]
    if pictured and not _is_cut_at_its_input(plan, task, cut):
        raise ValueError(
            f"{pictured[0]} codes pictures, and what leaves {plan.net!r} here are none: "
            "cut the network at its input, --net 'Whole(net=SimpleCNN())'"
        )
    if cut.beside and isinstance(plan.roles, SendOnce) and plan.protocol.labels_stay_home:
        raise ValueError(
            f"{plan.roles!r}: in later epochs the client's tail would lack the {' and '.join(cut.beside)} that "
            f"{plan.net!r} sends beside z: take a network that sends none (pad='fixed'), or protocol=Vanilla()"
        )
    if plan.guarded_clients is None or plan.guarded_clients == plan.clients:
        return
    lift = guard.public_part().lift(cut.shared, plan.seed)
    if cut.sent != cut.shared or not all(isinstance(part, nn.Identity | nn.Sequential) for part in lift.modules()):
        raise ValueError(
            f"guarded_clients={plan.guarded_clients}: the server undoes {guard} for every client or for none, so "
            "only guards without a server's half can be left out by some clients"
        )
    if plan.shared_client_network and guard.build(cut.shared, 0, 0, task).state_dict():
        raise ValueError(
            f"guarded_clients={plan.guarded_clients}: {guard} has weights of its own, which unguarded clients cannot "
            "hand on: give each client its own head (--own-client-network)"
        )


def _refuse_unfit_adapters(
    adapters: LoRA, net: Net, shape: tuple[int, ...], classes: int, fixed: tuple[str, ...]
) -> None:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # parts without storage
        parts = {"head": net.head(shape), "body": net.body(shape), "tail": net.tail(shape, classes)}
    adapters.refuse_unfit({name: part for name, part in parts.items() if name in fixed})


_known_to_fit = lru_cache(maxsize=8)(_refuse_unfit_adapters)  # every client of a plan asks


def _is_cut_at_its_input(plan: Plan, task: Task, cut: Cut) -> bool:
    if cut.shared != task.shape:
        return False
    with seeded(0):
        x = made_up(task, 1)
        return torch.equal(features(plan.net.head(task.shape).eval()(x)).z, x)


def steps_per_epoch(sizes: Sequence[int], batch: int, least: int = 2) -> int:
    """Batches in an epoch over clients of these sizes (a last batch below `least` joins the one before)."""
    return sum(max(1, ceil(size / batch) - (size > batch and 0 < size % batch < least)) for size in sizes)
