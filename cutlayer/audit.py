"""Guards against attackers: train, observe what the server saw, attack, judge; one row a cell.

A row counts only if the same attack succeeded on the unguarded cut in the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from .attacks import Attack
from .batch import Task
from .data.base import Loaded, Parts, overlap, parts
from .engines.local import LocalRun, Progress, as_batch, task_of
from .guards import Guard, NoGuard
from .guards.wcc import scatter_ratio
from .judge import Scores, Victim, floors, judge, why_control_failed, why_invalid
from .ledger import DOWN, UP
from .lpips import LPIPS
from .memory import client_memory
from .parties import build_client, build_server, sides
from .plan import PARTS, Plan, cut_shapes
from .privacy import privacy
from .seeds import derive

SCHEMA = 1
SMALLEST = 11  # pixels: one window of SSIM
AUX_SHARE, MOST_AUX = 0.45, 10_000  # of the training data, where the plan sets nothing aside


@dataclass(frozen=True)
class Event:
    """What an audit is doing, for whoever shows progress."""

    what: str
    done: float  # share of the whole audit


@dataclass
class Audit:
    """The table and the pictures behind it."""

    plan: Plan
    floors: dict[str, Scores]
    truth: Tensor
    labels: Tensor
    lpips_missing: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # guards that do not fit this plan, and why
    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Tensor] = field(default_factory=dict)  # by `picture_key`: reconstructions of `truth`

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "plan": repr(self.plan),
            "floors": self.floors,
            "rows": self.rows,
            "left_out": self.left_out,
            "lpips_missing": self.lpips_missing,
        }


def audit(
    plan: Plan,
    loaded: Loaded,
    *,
    guards: Sequence[Guard],
    attacks: Sequence[Attack],
    if_they_fit: Sequence[Guard] = (),
    seeds: Sequence[int] = (0,),
    images: int = 256,
    device: str = "cpu",
    lpips: LPIPS | None = None,
    lpips_missing: str | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Audit:
    """Every guard against every attack, the unguarded cut first: it is the control of all others.

    A guard that cannot work with this plan is an error, except those of `if_they_fit`: they are left out and named.
    """
    plan = _checked(plan, loaded)
    task = task_of(loaded.train, len(loaded.classes))
    left_out = {repr(guard): why for guard in if_they_fit if (why := why_unfit(plan, task, guard))}
    wanted = dict.fromkeys([NoGuard(), *guards, *(guard for guard in if_they_fit if repr(guard) not in left_out)])
    guards = list(wanted)
    for guard in guards:
        if why := why_unfit(plan, task, guard):
            raise ValueError(why)
    # Each attack in every form of knowledge that matters against a guard; the strongest one will count.
    shape = cut_shapes(plan, task).shared
    forms = {guard: [form for attack in attacks for form in attack.against(guard, shape)] for guard in guards}
    count = len(seeds) * sum(1 + len(against) for against in forms.values())
    done = 0
    result: Audit | None = None
    per_seed: list[dict[str, Scores]] = []
    for seed in seeds:
        # The judge plays every party, so the private seed may be fixed: the table can be made again.
        own = replace(plan, seed=seed, private_seed=derive(seed, "audit"))
        data = parts(loaded, aux=own.aux, val=own.val, seed=seed)
        _refuse_overlap(data)
        controls: dict[str, str | None] = {}
        unguarded: LocalRun | None = None
        for guard in guards:
            run = _train(replace(own, guard=guard), data, task, device, unguarded, _shares(on_event, done, count))
            unguarded = unguarded or run
            done += 1
            victim = Victim(run, images)
            if guard == NoGuard():
                marks = floors(victim, data, seed, lpips)
                per_seed.append(marks)
            if result is None:
                result = Audit(plan, {}, victim.truth.cpu(), victim.y.cpu(), lpips_missing, left_out)
            facts = _facts(run, victim)
            for attack in forms[guard]:
                on_event(Event(f"{attack} against {shown(guard)}", done / count))
                row, pictures = judge(attack, victim, data, seed, lpips)
                control = repr(attack.base())
                if guard == NoGuard():
                    controls[control] = why_control_failed(attack, row, marks["class_mean"], own)
                reason = why_invalid(row, controls[control])
                result.rows.append({**facts, **row, "valid": reason is None, "why_invalid": reason})
                if pictures is not None:
                    result.pictures.setdefault(picture_key(result.rows[-1]), pictures)
                done += 1
    assert result is not None
    result.floors = _average(per_seed)
    return result


def shown(guard: Guard) -> str:
    return "none" if guard == NoGuard() else repr(guard)


def picture_key(row: dict[str, Any]) -> str:
    return f"{row['guard']} | {row['attack']}"


def why_unfit(plan: Plan, task: Task, guard: Guard) -> str | None:
    """Why a guard cannot work with this plan: both sides are built, so nothing is left to fail after an hour."""
    plan = replace(plan, guard=guard, private_seed=0)
    try:
        server = build_server(plan.public(), task)
        build_client(plan, task, 0, server.handle)
    except ValueError as error:
        return str(error)
    return None


def _shares(on_event: Callable[[Event], None], done: int, count: int) -> Callable[[Guard, Progress], None]:
    def show(guard: Guard, progress: Progress) -> None:
        share = progress.step / max(1, progress.steps)
        on_event(Event(f"training with {shown(guard)}", (done + share) / count))

    return show


def _train(
    plan: Plan,
    data: Parts,
    task: Task,
    device: str,
    unguarded: LocalRun | None,
    show: Callable[[Guard, Progress], None],
) -> LocalRun:
    """A trained run. A guard made for finished networks is fitted to the unguarded one, frozen."""
    fitted = unguarded if plan.guard.post_hoc else None
    if fitted is not None:
        plan = replace(plan, frozen=PARTS)
    run = LocalRun(plan, data, classes=task.classes, device=device)
    if fitted is not None:
        run.start_from(fitted)
    run.train(on_step=lambda progress: show(plan.guard, progress))
    run.use_best()
    return run


def _checked(plan: Plan, loaded: Loaded) -> Plan:
    """The plan with auxiliary data set aside; data that cannot be audited is refused before anything is trained."""
    if not plan.aux:
        plan = replace(plan, aux=min(MOST_AUX, int(AUX_SHARE * len(loaded.train))))
    shape = tuple(loaded.train.x.shape[1:])
    if len(shape) != 3:
        raise ValueError(f"an audit reconstructs images; this data has inputs of shape {shape}")
    if min(shape[1:]) < SMALLEST:
        raise ValueError(f"SSIM needs images of at least {SMALLEST} pixels a side; these are {shape[1:]}")
    return plan


def _average(per_seed: list[dict[str, Scores]]) -> dict[str, Scores]:
    """The mean of every floor over the seeds."""
    first = per_seed[0]
    return {
        name: {
            figure: None if value is None else mean(marks[name][figure] or 0.0 for marks in per_seed)
            for figure, value in first[name].items()
        }
        for name in first
    }


def _refuse_overlap(data: Parts) -> None:
    if common := overlap(data.private, data.aux):
        raise ValueError(
            f"{common} of the attacker's auxiliary images are also private: the score would be memory. "
            "Drop the copies first (cutlayer.data.base.distinct, or UTKFace(distinct=True))"
        )


def _facts(run: LocalRun, victim: Victim) -> dict[str, Any]:
    """What a guard costs and keeps, whoever attacks it."""
    accuracies = run.evaluate(run.parts.test)
    batch = as_batch(run.samples[0], torch.arange(min(run.plan.batch, len(run.samples[0]))))
    memory = client_memory(victim.client, batch, cut_shapes(run.plan, run.task).u)
    return {
        "guard": shown(run.plan.guard),
        "fitted": run.plan.guard.post_hoc,
        "accuracy": mean(accuracies),
        "accuracy_spread": max(accuracies) - min(accuracies),
        "bytes_up": run.ledger.per_sample(UP),
        "bytes_down": run.ledger.per_sample(DOWN),
        "bytes_weights": run.ledger.weights_per_sample(),
        "sides": sides(run.plan, run.task),
        "privacy": privacy(run.plan, run.task, fitted=run.plan.guard.post_hoc),
        "train_seconds": round(run.seconds, 2),
        "client_memory": memory,
        "within_over_total": scatter_ratio(victim.seen, victim.y),
        "ledger": run.ledger.as_dict(),
    }
