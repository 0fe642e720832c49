"""Active attackers: a training run whose server is theirs."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import torch

from ..attacks import Attack, Attacker
from ..core.batch import Task
from ..core.errors import OffPlan
from ..core.message import Message
from ..core.outside import plain
from ..core.seeds import derive, generator, seeded
from ..data.base import Parts
from ..engines.local.run import LocalRun
from ..metrics.images import scores
from ..training.orders import weights_in
from ..training.plan.plan import Plan
from ..training.progress import StepEvent
from ..training.suspicion import Suspicion, counts_tensor
from .detector_trial import DetectorTrial
from .judge import for_each_sample
from .knowledge import before_training
from .refusal import refusals
from .victim import replay, uploads


class Hijacked(NamedTuple):
    """A run in which an active attacker sat in the server's place, and that attacker."""

    run: LocalRun
    attacker: Attacker
    seconds: float
    trial: DetectorTrial  # of the plan's detectors


class Training(NamedTuple):
    """The training that an attacker hijacks."""

    plan: Plan
    data: Parts
    task: Task
    device: str = "cpu"
    start: LocalRun | None = None  # what it goes on from, for guards that are fitted to a finished network


def hijack(
    attack: Attack,
    training: Training,
    *,
    again: int = 0,
    images: int = 128,
    on_step: Callable[[StepEvent], None] = lambda event: None,
    stop: Callable[[DetectorTrial], bool] = lambda trial: False,
) -> Hijacked:
    """That training again, with an active attacker at the server: for as many epochs as the attack needs, at least
    the plan's, and to the end, for no epoch of it is the best. Detectors are on trial: they stop nobody, and at their
    first alarm the attacker's pictures of `images` samples are judged. `again` counts repetitions with other random
    numbers of the attacker's."""
    plan, data, task, device, start = training
    plan = plan.with_secrets()  # who is told the client's key is told that of this very run
    began = time.perf_counter()
    with seeded(derive(plan.seed, "attack", plain(attack), again), device):
        knowledge = before_training(plan, task, data, device).only(attack.needs)
        with refusals(attack, ValueError):
            attacker = attack.attacker(knowledge, derive(plan.seed, "attacker", again))
    once = LocalRun(replace(plan, epochs=1), data, classes=task.classes, device=device).timetable.steps
    longer = replace(plan, epochs=max(plan.epochs, ceil(attack.least_steps() / once)), patience=0)
    run = LocalRun(longer, data, classes=task.classes, device=device, at_server=[attacker])
    if start is not None:
        run.start_from(start)
    if attack.hands_on:
        _hand_on(run, attacker, checked=getattr(attack, "checked", True))
    trial = DetectorTrial(run, lambda client: _damage(run, attacker, client, images), attack.honest_steps())

    def after(event: StepEvent) -> None:
        trial()
        on_step(event)

    with suppress(OffPlan):  # a client has refused what it was given, and is gone: what leaves is what left before
        run.train(on_step=after, stop=lambda: stop(trial))
    trial.finish()
    return Hijacked(run, attacker, time.perf_counter() - began, trial)


def _hand_on(run: LocalRun, attacker: Attacker, checked: bool) -> None:
    """Clients get their weights from the attacker; `checked`: as suspicious as deployed ones."""
    plan, batches, key = run.plan, run.timetable.batches, b"what no server has"
    clients = [Suspicion(plan, number, have, key) for number, have in enumerate(batches)] if checked else []
    if checked:
        run.coordinator.counts = counts_tensor(batches, [one.batches_code for one in clients])
    ask = run.carrier.ask

    def handed(client: int, order: Message) -> Message:
        given = replace(order, tensors={**order.tensors, **attacker.handed_on(weights_in(order))})
        if not checked:
            return ask(client, given)
        clients[client].refuse_foreign(given)
        answer = clients[client].sealed(given, ask(client, given))
        clients[client].adopt(answer)
        return answer

    run.carrier.ask = handed  # type: ignore[method-assign]


def _damage(run: LocalRun, attacker: Attacker, client: int, images: int) -> dict[str, Any]:
    """What an attacker in the middle of a training makes of what a client would send now."""
    samples = run.samples[client]
    pick = torch.randperm(len(samples), generator=generator(run.plan.seed))[:images]
    observed = replay(run, client, pick, "drill")
    forward = uploads(observed.messages)
    truth = samples.images(pick.to(samples.y.device))
    found = scores(truth, for_each_sample(attacker.reconstruct(forward), forward, observed.rows))
    return {"ssim": found["ssim"], "ncc": found["ncc"]}
