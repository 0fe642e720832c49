"""Guards against attackers: train, observe what the server saw, attack, judge; one row a cell.

A row counts only if the same attack succeeded on the unguarded cut in the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import mean
from typing import Any

from torch import Tensor

from ..attacks import Attack
from ..core.batch import Task
from ..core.guard import Shape
from ..core.outside import is_outside
from ..core.seeds import derive
from ..data.auxiliary import Auxiliary
from ..data.base import Loaded, Parts
from ..detectors import ClientContext
from ..engines.local.run import task_of
from ..guards import Guard, NoGuard
from ..metrics.lpips import LPIPS
from ..training.build import build_client, build_server
from ..training.facts.link import Link
from ..training.labels import why_unfit_labels
from ..training.laws import hold, refuse_broken
from ..training.plan.plan import Plan
from ..training.plan.shapes import cut_shapes
from .check.attacks import says_what_it_knows
from .control import why_control_failed, why_invalid
from .detector_trial import on_trial
from .facts import refuse_overlap, shared_out
from .floors import floors
from .judge import judge
from .knowledge import why_untold
from .rows import Event, Scores, picture_key, shown
from .scene import Scene, Shown
from .store import ResultStore
from .victim import Victim

SCHEMA = 1
SMALLEST = 11  # pixels: one window of SSIM
CONTROL_TRIES = 3  # an attack that fails on the open cut is tried again: some start badly, and that is no privacy
AUX_SHARE, MOST_AUX = 0.45, 10_000  # of the training data, where the plan sets nothing aside


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
    poisoned: list[dict[str, Any]] = field(default_factory=list)  # a row a training with malicious clients

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "plan": repr(self.plan),
            "floors": self.floors,
            "rows": self.rows,
            "poisoned": self.poisoned,
            "left_out": self.left_out,
            "lpips_missing": self.lpips_missing,
        }


@on_trial()
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
    auxiliary: Auxiliary | None = None,
    cells: ResultStore | None = None,
    claim: Callable[[str], bool] = lambda name: True,
    lpips: LPIPS | None = None,
    lpips_missing: str | None = None,
    link: Link | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Audit:
    """Every guard against every attack, the unguarded cut first: it is the control of all others.

    A guard that cannot work with this plan is an error, except those of `if_they_fit`: they are left out and named.
    What is in `cells` already is not computed again. Where several processes fill them, `claim` says what is this
    one's to do: single attacks on the open cut, whole guards otherwise. `link`: also say how long training with each
    guard would take over that.

    All clients are honest here. Where the plan has a poison, each guard is trained once more with malicious ones.
    """
    plan = _checked(replace(plan, client_detectors=tuple(one.on_trial() for one in plan.client_detectors)), loaded)
    task = task_of(loaded.train, len(loaded.classes))
    if plan.poison is not None:
        plan.poison.refuse_unfit(task)
    y = loaded.train.y
    left_out = {repr(guard): why for guard in if_they_fit if (why := why_unfit(plan, task, guard, y))}
    wanted = dict.fromkeys([NoGuard(), *guards, *(guard for guard in if_they_fit if repr(guard) not in left_out)])
    guards = list(wanted)
    for guard in guards:
        if why := why_unfit(plan, task, guard, y):
            raise ValueError(why)
    aside = auxiliary or Auxiliary()
    _refuse_attacks(attacks, plan, aside.apply(shared_out(plan, loaded, seeds[0]), task), task, images)
    # Each attack in every form of knowledge that matters against a guard; the strongest one will count.
    shape = cut_shapes(plan, task).shared
    forms = {guard: _forms(attacks, plan, guard, shape) for guard in guards}
    spoils = {guard: plan.poison for guard in guards if plan.poison is not None and not guard.post_hoc}
    show = Shown(on_event, len(seeds) * (len(spoils) + sum(1 + len(against) for against in forms.values())))
    claim = cache(claim)  # what is this process's stays so
    cells = cells or ResultStore()
    result: Audit | None = None
    per_seed: list[dict[str, Scores]] = []
    for seed in seeds:
        # The judge plays every party, so the private seed may be fixed: the table can be made again.
        own = replace(plan, seed=seed, private_seed=derive(seed, "audit"), poison=None)
        data = aside.apply(shared_out(own, loaded, seed), task)
        refuse_overlap(data)
        records = any("history" in attack.needs for attack in attacks)
        open_cut = Scene(replace(own, guard=NoGuard()), data, task, images, device, None, show, records, link)
        marks = _marks(cells, open_cut, seed, lpips)
        per_seed.append(marks)
        if result is None:
            truth = _truth(cells, open_cut, seed)
            result = Audit(plan, {}, truth["images"], truth["labels"], lpips_missing, left_out)
        controls: dict[str, dict[str, Any]] = {}
        for guard in guards:
            scene = (
                open_cut
                if guard == NoGuard()
                else Scene(replace(own, guard=guard), data, task, images, device, open_cut, show, records, link)
            )
            if guard != NoGuard() and not claim(f"{seed} | {shown(guard)}"):
                continue
            for attack in forms[guard]:
                name = f"{seed} | {shown(guard)} | {attack}"
                if (cell := cells.get(name)) is None:
                    # Together with its control, without which it cannot be judged.
                    if guard == NoGuard() and not claim(f"{seed} | none | {attack.base()}"):
                        continue
                    show(f"{attack} against {shown(guard)}")
                    cell = _cell(scene, attack, seed, marks, controls.get(repr(attack.base())), lpips)
                    cells.put(name, cell[0], **cell[1])
                row, pictures = cell
                if guard == NoGuard() and attack == attack.base():
                    controls[repr(attack.base())] = row
                result.rows.append(row)
                if "pictures" in pictures:
                    result.pictures.setdefault(picture_key(row), pictures["pictures"])
                show.done += 1
            if guard in spoils:
                name = f"{seed} | {shown(guard)} | {spoils[guard]}"
                if (cell := cells.get(name)) is None:
                    if guard == NoGuard() and not claim(name):
                        continue
                    cells.put(name, scene.spoiled(spoils[guard]))
                    cell = cells.get(name)
                assert cell is not None
                result.poisoned.append(cell[0])
                show.done += 1
            show.done += not scene.trained  # all of its cells were there already
    assert result is not None
    result.floors = _average(per_seed)
    return result


def _forms(attacks: Sequence[Attack], plan: Plan, guard: Guard, shape: Shape) -> list[Attack]:
    """Each attack as it meets a guard; where clients watch, the active ones in disguise as well."""
    watched = any(one.suspects for one in plan.client_detectors) and not guard.post_hoc
    found: list[Attack] = []
    for attack in attacks:
        if guard == NoGuard():
            found.append(attack.base())  # first: the control of all its forms
        for one in (attack, *(attack.evasions() if watched else ())):
            found += one.against(guard, shape)
    return list(dict.fromkeys(found))


def _cell(
    scene: "Scene",
    attack: Attack,
    seed: int,
    marks: dict[str, Scores],
    control: dict[str, Any] | None,
    lpips: LPIPS | None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One attack on one guard. On the open cut an attack that fails is tried again with other random numbers."""
    tries = range(CONTROL_TRIES) if control is None else [control["tries"] - 1]
    for again in tries:
        if attack.active:
            row, pictures = _active_row(scene, attack, seed, lpips, again)
        else:
            row, pictures = judge(attack, scene.victim, scene.data, seed, lpips, again)
        failed = control["why_control_failed"] if control is not None else None
        if control is None:
            failed = why_control_failed(attack, row, marks.get("class_mean", marks["mean"]), scene.plan)
            if failed is None:
                break
    reason = why_invalid(row, failed)
    whole = {**scene.facts, **row, "why_control_failed": failed, "valid": reason is None, "why_invalid": reason}
    return whole, {} if pictures is None else {"pictures": pictures}


def _active_row(
    scene: "Scene", attack: Attack, seed: int, lpips: LPIPS | None, again: int
) -> tuple[dict[str, Any], Tensor | None]:
    """An active attack has a run of its own. What the guard costs is still told by the honest one."""
    run, attacker, seconds, trial = scene.hijacked(attack, seed, again)
    row, pictures = judge(attack, Victim(run, scene.images), scene.data, seed, lpips, again, attacker)
    row["seconds"] = round(row["seconds"] + seconds, 2)
    row["hijacked"] = {"accuracy": mean(run.evaluate(run.parts.test)), "steps": run.step, "epochs": run.epoch}
    if run.plan.client_detectors:
        row["detectors_attacked"] = trial.attacked()
    return row, pictures


def _marks(cells: ResultStore, open_cut: "Scene", seed: int, lpips: LPIPS | None) -> dict[str, Scores]:
    if (cell := cells.get(f"{seed} | floors")) is None:
        cells.put(f"{seed} | floors", marks := floors(open_cut.victim, open_cut.data, seed, lpips))
        return marks
    return cell[0]


def _truth(cells: ResultStore, open_cut: "Scene", seed: int) -> dict[str, Tensor]:
    if (cell := cells.get(f"{seed} | truth")) is None:
        truth = {"images": open_cut.victim.truth.cpu(), "labels": open_cut.victim.y.cpu()}
        cells.put(f"{seed} | truth", {}, **truth)
        return truth
    return cell[1]


def why_unfit(plan: Plan, task: Task, guard: Guard, y: Tensor | None = None) -> str | None:
    """Why a guard cannot work with this plan: both sides are built, so nothing is left to fail after an hour."""
    try:
        plan = replace(plan, guard=guard, private_seed=0)
        server = build_server(plan.public(), task)
        build_client(plan, task, 0, server.handle)
        for one in plan.client_detectors:
            one.refuse_unfit(
                ClientContext(task, plan.batch_size, 0, lambda steps: iter(()), apart=not guard.mixes_samples)
            )
        return why_unfit_labels(plan, task, y) if y is not None else None
    except ValueError as error:
        return str(error)


def _checked(plan: Plan, loaded: Loaded) -> Plan:
    """The plan with auxiliary data set aside; data that cannot be audited is refused before anything is trained."""
    if not plan.protocol.crosses:
        raise ValueError(f"nothing crosses in {plan.protocol.__name__}, so there is no cut to audit: take UShaped")
    if not plan.aux_samples:
        plan = replace(plan, aux_samples=min(MOST_AUX, int(AUX_SHARE * len(loaded.train))))
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


def _refuse_attacks(attacks: Sequence[Attack], plan: Plan, data: Parts, task: Task, images: int) -> None:
    """What an attack lacks is said now, and not after the first hour of training."""
    for attack in attacks:
        refuse_broken([attack], (), task)
        if is_outside(type(attack)):
            hold(attack, (says_what_it_knows,))
        reason = attack.why_not(task, plan.protocol.labels_stay_home) or why_untold(attack, data, images)
        if reason is not None:
            raise ValueError(reason)
