"""Small runs of several clients, and what tests of rounds and roles compare of them."""

from collections.abc import Callable
from itertools import count

import torch
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.engines.local.run import LocalRun
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan

PLAIN = SGD(lr=0.05, momentum=0.0)
GROUPED = TinyNet(norm="group")


def plan(**changes) -> Plan:
    return tiny_plan(**{"epochs": 2, "batch_size": 6, "clients": 3, **changes})


def start(plan: Plan, **options) -> LocalRun:
    return LocalRun(plan, options.pop("parts", None) or tiny_parts(), classes=TASK.classes, **options)


def trained(plan: Plan, **options) -> LocalRun:
    run = start(plan, **options)
    assert run.train()
    return run


def same(ours, theirs) -> None:
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def refuse_other_end(run: LocalRun, again: Callable[[], LocalRun]) -> dict[str, torch.Tensor]:
    """Train `run` with a stop after two rounds: whoever goes on from there ends the same. Returns what was kept."""
    asked = count()
    assert not run.train(stop=lambda: next(asked) == 2)
    tensors, facts = run.snapshot()
    kept = {name: t.clone() for name, t in tensors.items()}
    resumed = again()
    resumed.restore(kept, facts)
    assert run.train() and resumed.train()
    same(run.tensors(), resumed.tensors())
    same(body_of(run), body_of(resumed))
    return kept


def body_of(run: LocalRun) -> dict[str, torch.Tensor]:
    return {name: parameter.clone() for name, parameter in run.server.body.state_dict().items()}
