"""Guards against attackers: train, observe what the server saw, attack, judge; one row a cell.

A row counts only if the same attack succeeded on the unguarded cut in the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..attacks import Attack
from ..core.batch import Task
from ..core.guard import Shape
from ..core.message import Handler, Message, Watcher
from ..core.seeds import derive
from ..data.auxiliary import Auxiliary
from ..data.base import Loaded, Parts, overlap, parts
from ..data.poisons import Poison
from ..detectors import ClientContext
from ..engines.client_report import by_client
from ..engines.local.run import LocalRun, Progress, as_batch, task_of
from ..guards import Guard, NoGuard
from ..guards.wcc import scatter_ratio
from ..metrics.lpips import LPIPS
from ..training.build import build_client, build_server, sides
from ..training.evaluation import mean_iou
from ..training.facts.compression import rates
from ..training.facts.forecast import Stopwatch, forecast
from ..training.facts.link import Link
from ..training.facts.memory import client_memory
from ..training.facts.privacy import privacy
from ..training.labels import why_unfit_labels
from ..training.plan.plan import PARTS, Plan, cut_shapes
from ..wire.ledger import DOWN, TRAINING, UP
from .detector_trial import DetectorTrial, on_trial
from .judge import Hijacked, Scores, Victim, floors, hijack, judge, why_control_failed, why_invalid, why_untold
from .poison_trial import PoisonTrial, honest
from .store import ResultStore

SCHEMA = 1
SMALLEST = 11  # pixels: one window of SSIM
CONTROL_TRIES = 3  # an attack that fails on the open cut is tried again: some start badly, and that is no privacy
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
    _refuse_attacks(attacks, plan, aside.apply(_shared_out(plan, loaded, seeds[0]), task), task, images)
    # Each attack in every form of knowledge that matters against a guard; the strongest one will count.
    shape = cut_shapes(plan, task).shared
    forms = {guard: _forms(attacks, plan, guard, shape) for guard in guards}
    spoils = {guard: plan.poison for guard in guards if plan.poison is not None and not guard.post_hoc}
    show = _Shown(on_event, len(seeds) * (len(spoils) + sum(1 + len(against) for against in forms.values())))
    claim = cache(claim)  # what is this process's stays so
    cells = cells or ResultStore()
    result: Audit | None = None
    per_seed: list[dict[str, Scores]] = []
    for seed in seeds:
        # The judge plays every party, so the private seed may be fixed: the table can be made again.
        own = replace(plan, seed=seed, private_seed=derive(seed, "audit"), poison=None)
        data = aside.apply(_shared_out(own, loaded, seed), task)
        _refuse_overlap(data)
        records = any("history" in attack.needs for attack in attacks)
        open_cut = _Scene(replace(own, guard=NoGuard()), data, task, images, device, None, show, records, link)
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
                else _Scene(replace(own, guard=guard), data, task, images, device, open_cut, show, records, link)
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
    scene: "_Scene",
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
    scene: "_Scene", attack: Attack, seed: int, lpips: LPIPS | None, again: int
) -> tuple[dict[str, Any], Tensor | None]:
    """An active attack has a run of its own. What the guard costs is still told by the honest one."""
    run, attacker, seconds, trial = scene.hijacked(attack, seed, again)
    row, pictures = judge(attack, Victim(run, scene.images), scene.data, seed, lpips, again, attacker)
    row["seconds"] = round(row["seconds"] + seconds, 2)
    row["hijacked"] = {"accuracy": mean(run.evaluate(run.parts.test)), "steps": run.step, "epochs": run.epoch}
    if run.plan.client_detectors:
        row["watched"] = trial.attacked()
    return row, pictures


def _marks(cells: ResultStore, open_cut: "_Scene", seed: int, lpips: LPIPS | None) -> dict[str, Scores]:
    if (cell := cells.get(f"{seed} | floors")) is None:
        cells.put(f"{seed} | floors", marks := floors(open_cut.victim, open_cut.data, seed, lpips))
        return marks
    return cell[0]


def _truth(cells: ResultStore, open_cut: "_Scene", seed: int) -> dict[str, Tensor]:
    if (cell := cells.get(f"{seed} | truth")) is None:
        truth = {"images": open_cut.victim.truth.cpu(), "labels": open_cut.victim.y.cpu()}
        cells.put(f"{seed} | truth", {}, **truth)
        return truth
    return cell[1]


class _Shown:
    """Progress over all cells."""

    def __init__(self, on_event: Callable[[Event], None], count: int):
        self.on_event, self.count, self.done = on_event, count, 0

    def __call__(self, what: str, share: float = 0.0) -> None:
        self.on_event(Event(what, (self.done + share) / self.count))


@dataclass
class _Scene:
    """One guard under one seed. It is trained when a cell first needs it, and never if all are there already."""

    plan: Plan
    data: Parts
    task: Task
    images: int
    device: str
    open_cut: "_Scene | None"
    show: _Shown
    records: bool = False  # whether an attack wants the messages of the training
    link: Link | None = None
    told: dict[str, Any] | None = None  # what is foretold of the training over the link
    trained: bool = False
    watched: list[dict[str, Any]] = field(default_factory=list)  # how the plan's detectors did in honest training
    server_watched: list[dict[str, Any]] = field(default_factory=list)  # how those of the server did
    history: list[Message] = field(default_factory=list)

    @cached_property
    def run(self) -> LocalRun:
        """A guard made for finished networks is fitted to the unguarded one, frozen."""
        plan, fitted = self._start()
        watch = Stopwatch()
        heard: list[Watcher] = [*([self._listen] if self.records else []), *([watch] if self.link else [])]
        run = LocalRun(plan, self.data, classes=self.task.classes, device=self.device, at_server=heard)
        if fitted is not None:
            run.start_from(fitted)
        trial = DetectorTrial(run)

        def after(progress: Progress) -> None:
            trial()
            self.show(f"training with {shown(self.plan.guard)}", progress.step / max(1, progress.steps))

        run.train(on_step=after)
        trial.finish()
        self.watched, self.server_watched = trial.honest(), honest(run)
        if self.link is not None:
            per_epoch = run.steps // run.plan.epochs
            self.told = forecast(
                self.link, run.ledger, watch, seconds=run.seconds, steps=run.step, per_epoch=per_epoch
            )
        run.use_best()
        self.trained = True
        self.show.done += 1
        return run

    def hijacked(self, attack: Attack, seed: int, again: int) -> Hijacked:
        """The same training with an active attacker at the server."""
        plan, fitted = self._start()
        plan = replace(plan, server_detectors=())  # the attacker would be watching
        what = f"{attack} trains with {shown(self.plan.guard)}"
        return hijack(
            attack, plan, self.data, self.task, seed, device=self.device, again=again, start=fitted,
            images=min(self.images, 128),
            on_step=lambda p: self.show(what, p.step / max(1, p.steps)),
        )  # fmt: skip

    def spoiled(self, poison: Poison) -> dict[str, Any]:
        """The same training with malicious clients. The server is honest here, so no client watches it."""
        plan = replace(self.plan, poison=poison, client_detectors=())
        run = LocalRun(plan, self.data, classes=self.task.classes, device=self.device)
        trial, what = PoisonTrial(run), f"{poison} trains with {shown(self.plan.guard)}"

        def between_turns() -> bool:
            trial()
            return False

        self.show(what)
        run.train(
            on_step=lambda progress: self.show(what, progress.step / max(1, progress.steps)),
            on_epoch=trial,
            stop=between_turns,
        )
        run.use_best()
        return {"guard": shown(plan.guard), "seed": plan.seed, **trial.told()}

    def _start(self) -> tuple[Plan, LocalRun | None]:
        fitted = self.open_cut.run if self.plan.guard.post_hoc and self.open_cut is not None else None
        if fitted is None:
            return self.plan, None
        # Where nothing learns, neither a server nor a client can lead anybody astray.
        return replace(self.plan, frozen_parts=PARTS, client_detectors=(), server_detectors=()), fitted

    def _listen(self, message: Message, handle: Handler) -> Message:
        if message.client == 0 and message.kind in TRAINING:
            self.history.append(message)
        return handle(message)

    @cached_property
    def victim(self) -> Victim:
        victim = Victim(self.run, self.images)
        victim.history = self.history if self.records else None
        return victim

    @cached_property
    def facts(self) -> dict[str, Any]:
        found = _facts(self.run, self.victim) | ({} if self.link is None else {"link": self.told})
        found |= {"server_watch": self.server_watched} if self.server_watched else {}
        return found | ({"watch": self.watched} if self.watched else {})


def shown(guard: Guard) -> str:
    return "none" if guard == NoGuard() else repr(guard)


def picture_key(row: dict[str, Any]) -> str:
    return f"{row['guard']} | {row['attack']}"


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


def _shared_out(plan: Plan, loaded: Loaded, seed: int) -> Parts:
    return parts(loaded, aux=plan.aux_samples, val=plan.val_share, seed=seed)


def _refuse_attacks(attacks: Sequence[Attack], plan: Plan, data: Parts, task: Task, images: int) -> None:
    """What an attack lacks is said now, and not after the first hour of training."""
    for attack in attacks:
        reason = attack.why_not(task, plan.protocol.labels_stay_home) or why_untold(attack, data, images)
        if reason is not None:
            raise ValueError(reason)


def _refuse_overlap(data: Parts) -> None:
    if common := overlap(data.private, data.aux):
        raise ValueError(
            f"{common} of the attacker's auxiliary images are also private: the score would be memory. "
            "Drop the copies first (cutlayer.data.base.distinct, or UTKFace(distinct=True))"
        )


def _facts(run: LocalRun, victim: Victim) -> dict[str, Any]:
    """What a guard costs and keeps, whoever attacks it."""
    accuracies = run.evaluate(run.parts.test)
    batch = as_batch(run.samples[0], torch.arange(min(run.plan.batch_size, len(run.samples[0]))))
    maps = [mean_iou(client.confusion) for client in run.clients if client.confusion is not None]
    memory = client_memory(victim.network, batch, cut_shapes(run.plan, run.task).u)
    return {
        "guard": shown(run.plan.guard),
        "fitted": run.plan.guard.post_hoc,
        "accuracy": mean(accuracies),
        **({"mean_iou": mean(maps)} if maps else {}),
        "accuracy_spread": max(accuracies) - min(accuracies),
        **({"fairness": by_client(run).get("fairness")} if run.plan.clients > 1 else {}),
        "bytes_up": run.ledger.per_sample(UP),
        "bytes_down": run.ledger.per_sample(DOWN),
        "bytes_weights": run.ledger.weights_per_sample(),
        "sides": sides(run.plan, run.task),
        "privacy": privacy(run.plan, run.task, fitted=run.plan.guard.post_hoc),
        "train_seconds": round(run.seconds, 2),
        "client_memory": memory,
        "within_over_total": scatter_ratio(victim.seen, victim.y) if victim.y.dim() == 1 else None,
        "rates": rates(run.plan, run.task, run.ledger),
        "ledger": run.ledger.as_dict(),
    }
