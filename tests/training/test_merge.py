"""Updates of a round on their way into one state: folded in where the rule is a mean, else held to the end."""

import weakref
from dataclasses import dataclass

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.engines.local.run import LocalRun
from cutlayer.rules import FedAdam, FedAvg, FedMuon, FedProx, Krum, Median, Merging, Rollback, Scaffold, Update
from cutlayer.training import merge
from cutlayer.training.laws import toy_state
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed

MEANS = [FedAvg(lr=0.5), FedAdam(lr=0.1), FedMuon(lr=0.3), FedProx(mu=0.1)]


@pytest.mark.parametrize("rule", MEANS, ids=repr)
def test_a_running_mean_is_the_mean(rule):
    now, updates = toy_state(0), [Update(toy_state(seed), 2 + seed) for seed in range(1, 6)]
    running = rule.running(now)
    for update in updates:
        running.add(update)
    ours, theirs = running.merged(), rule(now, updates)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7, msg=name)


def test_a_running_mean_differs_in_the_last_bit_at_most():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(100_000, generator=draw)
    updates = [Update({"net.w": x + 1e-3 * torch.randn(len(x), generator=draw)}, 160) for _ in range(20)]
    running = FedAvg().running({"net.w": x})
    for update in updates:
        running.add(update)
    ours, theirs = (found["net.w"].view(torch.int32) for found in (running.merged(), FedAvg()({"net.w": x}, updates)))
    assert (ours - theirs).abs().max() <= 1
    assert (ours != theirs).float().mean() < 1e-3


def test_nobody_came_or_nobody_had_samples():
    now = toy_state(0)
    assert FedAvg().running(now).merged().keys() == now.keys()
    running = FedAvg().running(now)
    running.add(Update(toy_state(1), 0))
    with pytest.raises(ValueError, match="no samples"):
        running.merged()


@dataclass(frozen=True, repr=False)
class FirstCome(Merging):
    """A rule of somebody's own that is no mean."""

    def shares(self, current, updates):
        return [1.0, *[0.0] * (len(updates) - 1)]


@pytest.mark.parametrize("rule", [Median(), Krum(), Rollback(), Scaffold(), FirstCome()], ids=repr)
def test_rules_that_compare_clients_hold_them_all(rule):
    assert rule.running(toy_state(0)) is None
    assert merge.held_at_once(rule, 200) == 200
    assert merge.held_at_once(FedAvg(), 200) == 1 < merge.held_at_once(FedAvg(), 32) == 32


def trained(monkeypatch, held, **changes):
    """A round of five clients with bodies of their own, and how many updates of bodies were alive at most."""
    monkeypatch.setattr(merge, "HELD", held)
    plan = tiny_plan(
        **{"rounds": SplitFed(), "clients": 5, "epochs": 2, "batch_size": 6, "local_steps": 0, **changes}
    )
    run, alive, most = LocalRun(plan, tiny_parts(), classes=TASK.classes), weakref.WeakSet(), [0]
    collect = run.coordinator.bodies.collect

    def collected(client):
        state = collect(client)
        first = next(iter(state.values()))
        alive.add(first.untyped_storage())
        most[0] = max(most[0], len(alive))
        return state

    monkeypatch.setattr(run.coordinator.bodies, "collect", collected)
    assert run.train()
    return run, most[0]


@pytest.mark.parametrize("changes", [{}, {"roles": Frozen(share=0.4)}, {"shared_client_network": False}], ids=str)
def test_many_clients_of_a_mean_are_folded_in_one_by_one(changes, monkeypatch):
    few, held = trained(monkeypatch, 32, **changes)
    many, alive = trained(monkeypatch, 4, **changes)
    assert alive <= 2 < held == 5
    ours, theirs = many.tensors(), few.tensors()
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6, msg=name)
    assert many.coordinator.updates_held == 1


def test_a_robust_rule_holds_a_round(monkeypatch):
    run, alive = trained(monkeypatch, 4, rule=Median())
    assert alive == run.coordinator.updates_held == 5
