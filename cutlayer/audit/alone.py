"""What a client could do alone: the baseline of every audit and comparison.

Twice: with a small local network in place of the body, and with the largest one that costs no more than the client's
side of the costliest guard. Nothing leaves a client that is alone, so there is nothing to attack.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean

from ..core.batch import Task
from ..core.compressor import Compression
from ..core.errors import NonFinite
from ..data.base import Parts
from ..engines.client_report import by_client
from ..engines.local.run import LocalRun
from ..guards import NoGuard
from ..nets.base import count_macs, scores_shape
from ..nets.local import local_macs, widest
from ..rules import Latest
from ..training.facts.sides import sides
from ..training.plan.optimizers import Adam
from ..training.plan.plan import Plan
from ..training.plan.roles import AllActive
from ..training.plan.schedule import Relay
from ..training.plan.shapes import cut_shapes
from ..training.protocols import Alone
from .facts import commonest
from .rows import AloneRow

ALONE, EQUAL_COST = "client alone", "client alone, equal cost"


@dataclass(frozen=True)
class Baseline:
    """One of the two, before it is trained: its plan, or why there is none."""

    name: str
    plan: Plan | None
    why_none: str | None = None
    budget: int | None = None  # multiply-accumulates of the whole client that it may take; None: not limited
    costliest: str | None = None  # whose they are

    def row(self, seed: int) -> AloneRow:
        """What is known of it without training."""
        return {
            "name": self.name,
            "seed": seed,
            "protocol": None if self.plan is None else repr(self.plan.protocol),
            "why_none": self.why_none,
            "budget": self.budget,
            "costliest": self.costliest,
            "accuracy": None,
            "accuracy_worst": None,
            "accuracy_chance": None,
            "fairness": None,
            "steps": None,
            "steps_of_all": None,
            "macs": None,
            "parameters": None,
            "bytes": 0,
            "leaves": "nothing",
            "train_seconds": None,
        }


def alone_plan(plan: Plan, protocol: Alone | None = None) -> Plan:
    """The same training for clients without a server: own networks, own data, and nothing that crosses or merges."""
    return replace(
        plan, protocol=protocol or Alone(), guard=NoGuard(), guarded_clients=None,
        shared_client_network=plan.clients == 1,
        rounds=Relay(), rule=Latest(), roles=AllActive(), clients_per_round=None, micro_batches=1,
        compression=Compression(), client_detectors=(), server_detectors=(), poison=None,
        local_steps=1, server_optimizer=Adam(), largest_move=0,
    )  # fmt: skip


def baselines(plan: Plan, costs: Mapping[str, int], task: Task) -> list[Baseline]:
    """Both of them. `costs` are the multiply-accumulates of the clients they are compared with, by name."""
    costliest = max(costs, key=lambda name: costs[name])
    budget = costs[costliest]
    if why := _why_none(plan, task):
        return [Baseline(ALONE, None, why), Baseline(EQUAL_COST, None, why, budget, costliest)]
    first = Baseline(ALONE, alone_plan(plan))
    cut = cut_shapes(alone_plan(plan), task)
    z, u = cut.z, cut.u
    left = budget - count_macs(plan.net.head(task.shape), task.shape)
    left -= count_macs(plan.net.tail(task.shape, task.classes), u, cut.beside)
    width = widest(z, u, left, cut.tokens)
    if not width:
        why = (
            f"the client's side of {costliest} leaves {max(0, left):,} multiply-accumulates for a local network, and "
            f"the smallest takes {local_macs(z, u, 1, cut.tokens):,}"
        )
        return [first, Baseline(EQUAL_COST, None, why, budget, costliest)]
    return [first, Baseline(EQUAL_COST, alone_plan(plan, Alone(width=width)), None, budget, costliest)]


def _why_none(plan: Plan, task: Task) -> str | None:
    if len(scores_shape(plan.net, task.shape, task.classes)) > 1:
        what = "place" if task.vocabulary else "pixel"
        return f"every {what} has a class, and the local networks here name one class a sample"
    try:
        cut = cut_shapes(alone_plan(plan), task)
        local_macs(cut.z, cut.u, 1, cut.tokens)
    except ValueError as error:
        return str(error)
    return None


def train_alone(
    one: Baseline, plan: Plan, data: Parts, task: Task, device: str, show: Callable[[float], None]
) -> AloneRow:
    """Train every client by itself. `plan` has the seeds. Numbers that are lost are no accuracy, and said."""
    assert one.plan is not None
    run = LocalRun(
        replace(one.plan, seed=plan.seed, private_seed=plan.private_seed), data, classes=task.classes, device=device
    )
    try:
        run.train(on_step=lambda event: show(event.step / max(1, event.steps)))
        run.use_best()
        reached = run.evaluate(run.parts.test)
    except NonFinite as error:
        return {**one.row(plan.seed), "why_none": f"with seed {plan.seed} {error}"}
    client = sides(run.plan, task)["client"]
    return {
        **one.row(plan.seed),
        "accuracy": mean(reached),
        "accuracy_worst": min(reached),
        "accuracy_chance": commonest(data.test.y),
        "steps": max(run.progress.taken),
        "steps_of_all": sum(run.progress.taken),
        "fairness": by_client(run).get("fairness") if run.plan.clients > 1 else None,
        "macs": client["macs"],
        "parameters": client["parameters"],
        "bytes": run.ledger.bytes.total(),
        "train_seconds": round(run.progress.seconds, 2),
    }
