"""Guards against attackers: train, observe what the server saw, attack, judge; one row a cell.

A low score counts only if the same attack succeeded on the unguarded cut in the same run; what was found counts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any, cast

from torch import Tensor

from ..attacks import Attack, Attacker
from ..core.errors import NonFinite
from ..core.seeds import derive
from ..data.base import Loaded, Parts
from ..data.poisons import Poison
from ..guards import Guard, NoGuard
from ..metrics.lpips import LPIPS
from ..training.batches import shares_of, task_of
from ..training.enough import sample_counts
from ..training.facts.sides import sides
from ..training.plan.plan import Plan
from ..training.plan.shapes import cut_shapes
from .alone import Baseline, baselines, train_alone
from .control import why_control_failed, why_invalid
from .detector_trial import on_trial
from .facts import left_uncompared, refuse_alike, refuse_overlap, refuse_single, shared_out
from .fit import checked, forms, of_itself, refuse_attacks, why_unfit
from .floors import floors
from .grades import LEAST_UNITS
from .jobs import Failed, made_or_failed
from .judge import judge
from .knowledge import why_pointless
from .progress import Cells
from .refusal import NotTried
from .result import Audit
from .rows import AloneRow, Floors, PoisonRow, Row, picture_key, shown
from .scene import Scene, SceneContext
from .spec import AuditSpec, Resources
from .tables import still, with_secret_columns, without_copies
from .victim import Victim

Cell = tuple[Any, dict[str, Tensor]]  # a row, or why there is none; and pictures
CONTROL_TRIES = 3  # an attack that fails on the open cut is tried again: some start badly, and that is no privacy


@on_trial()
def audit(spec: AuditSpec, loaded: Loaded, resources: Resources | None = None) -> Audit:
    """Every guard against every attack, the unguarded cut first: it is the control of all others.

    All clients are honest here. Where the plan has a poison, each guard is trained once more with malicious ones.
    """
    matrix = Matrix(spec, loaded, resources or Resources())
    for seed in spec.seeds:
        matrix.fill(seed)
    return matrix.result()


class Matrix:
    """The table while it is filled, a seed at a time. What cannot be audited is refused before any training."""

    def __init__(self, spec: AuditSpec, loaded: Loaded, resources: Resources):
        plan = replace(spec.plan, client_detectors=tuple(one.on_trial() for one in spec.plan.client_detectors))
        if spec.images < 2:
            raise ValueError(
                f"a verdict needs several images, at least 2 (and {LEAST_UNITS} for a good one); got {spec.images}"
            )
        if spec.plan.epochs < 1:
            raise ValueError("an audit compares trainings: give --epochs 1 or more")
        loaded = with_secret_columns(loaded, [*spec.attacks, *spec.optional_attacks])
        self.spec, self.loaded, self.resources, self.plan = spec, loaded, resources, checked(plan, loaded)
        self.task = task_of(loaded.train, len(loaded.classes))
        if plan.poison is not None:
            plan.poison.refuse_unfit(self.task)
        self.counts = [self._counts(seed) for seed in spec.seeds]
        unfit = {guard: why for guard in spec.optional_guards if (why := self._why_unfit(guard))}
        fitting = (guard for guard in spec.optional_guards if guard not in unfit)
        self.guards = list(dict.fromkeys([NoGuard(), *spec.guards, *fitting]))
        for guard in self.guards:
            if why := self._why_unfit(guard):
                raise ValueError(why)
        data = self._data(self.plan, spec.seeds[0])
        refuse_attacks(spec.attacks, self.plan, data, self.task, spec.images)
        pointless = {
            one: why
            for one in spec.optional_attacks
            if (why := why_pointless(one, self.plan, self.task, data, spec.images))
        }
        attacks = [*spec.attacks, *(one for one in spec.optional_attacks if one not in pointless)]
        if pointless and not attacks:
            reasons = dict.fromkeys(f"{one}: {of_itself(one, why)}" for one, why in pointless.items())
            raise ValueError(f"no attack has anything to find here: {'; '.join(reasons)}")
        # Each attack in every form of knowledge that matters against a guard; the strongest one will count.
        shape = cut_shapes(self.plan, self.task).shared
        self.forms = {guard: forms(attacks, self.plan, guard, shape) for guard in self.guards}
        self.spoils = {guard: plan.poison for guard in self.guards if plan.poison is not None and not guard.post_hoc}
        self.alone = baselines(self.plan, self._client_macs(), self.task) if spec.alone else []
        each = {
            "training": len(self.guards),
            "attack": sum(len(against) for against in self.forms.values()),
            "poisoned training": len(self.spoils),
            "baseline": sum(one.plan is not None for one in self.alone),
        }
        self.to_make = {kind: len(spec.seeds) * count for kind, count in each.items() if count}
        self.show = Cells(resources.on_event, self.to_make)
        self.store = resources.store
        self.records = any("history" in attack.needs for attack in attacks)
        self.left_out = {repr(guard): why for guard, why in unfit.items()}
        # By name, each once: all forms of an attack lack the same.
        self.left_out |= {type(one).__name__: of_itself(one, why) for one, why in pointless.items()}
        self.left_out |= {f"column {name!r}": "it never changes" for name in still(loaded)}
        if copies := without_copies(shared_out(self.plan, loaded, spec.seeds[0]))[1]:
            self.left_out[f"{copies} auxiliary {self.task.kind}"] = "they equal private ones, value for value"
        self.left_out |= left_uncompared(data)
        self._floors: list[Floors] = []
        self._result: Audit | None = None

    def fill(self, seed: int) -> None:
        shared = self.context(seed)
        open_cut = self.scene(seed, NoGuard(), shared)
        marks = self.marks(open_cut)
        self._floors.append(marks)
        if self._result is None:
            truth = self.truth(open_cut)
            missing = self.resources.lpips_missing
            self._result = Audit(self.plan, {}, truth["images"], truth["labels"], missing, self.left_out)
            self._result.columns = self.loaded.train.columns
            self._result.words = tuple(self.loaded.tokenizer.words) if self.loaded.tokenizer is not None else ()
        controls: dict[str, Row] = {}
        for guard in self.guards:
            if guard == NoGuard():
                if self._is_wanted(open_cut, None):
                    _ = open_cut.run  # without it nothing can be judged: whatever is wrong ends the audit
                self._attacked(open_cut, marks, controls)
            else:
                self._attacked_if_it_trains(self.scene(seed, guard, shared, open_cut), marks, controls)
        for one in self.alone:
            self._by_itself(one, seed)

    def own(self, seed: int) -> Plan:
        """The plan under one seed. The judge plays every party, so the private seed may be fixed: the table can be
        made again."""
        return replace(self.plan, seed=seed, private_seed=derive(seed, "audit"), poison=None)

    def context(self, seed: int) -> SceneContext:
        data = self._data(self.own(seed), seed)
        refuse_overlap(data)
        refuse_alike(data)
        refuse_single(self.own(seed), data)
        return SceneContext(
            data, self.task, self.spec.images, self.resources.device, self.show, self.records, self.spec.link
        )

    def scene(self, seed: int, guard: Guard, shared: SceneContext, open_cut: Scene | None = None) -> Scene:
        return Scene(self.own(seed).with_guard(guard), shared, open_cut, epochs=self._recorded(guard))

    def result(self) -> Audit:
        assert self._result is not None
        for one in self._result.not_tried:
            if all(row["guard"] != one["guard"] for row in self._result.rows):
                self.left_out[one["guard"]] = f"no attack could be tried: {one['why']}"
        self._result.failed = list(self.store.lost)
        self._result.floors = _average(self._floors)
        return self._result

    def _attacked_if_it_trains(self, scene: Scene, marks: Floors, controls: dict[str, Row]) -> None:
        """A guard with which training is lost is named among those left out; the others lose nothing by it."""
        guard, seed = scene.plan.guard, scene.plan.seed
        name = lost_name(seed, guard)
        if self.store.get(name) is None and self._is_wanted(scene, controls):
            try:
                made = made_or_failed(lambda: scene.run, NonFinite)
            except NonFinite as error:
                self.store.put(name, {"why": f"with seed {seed} {error}"})
            else:
                if isinstance(made, Failed):
                    self.store.remember(name, {"why": f"with seed {seed} {made}"})
        if (cell := self.store.get(name)) is None:
            self._attacked(scene, marks, controls)
        else:
            self.left_out[shown(guard)] = cell[0]["why"]

    def _is_wanted(self, scene: Scene, controls: dict[str, Row] | None) -> bool:
        """Whether an attack is missing that needs its training; one without its control is not made."""
        guard, seed = scene.plan.guard, scene.plan.seed
        there = [one for one in self.forms[guard] if controls is None or repr(one.base()) in controls]
        return any(self.store.get(cell_name(seed, guard, one)) is None for one in there)

    def _attacked(self, scene: Scene, marks: Floors, controls: dict[str, Row]) -> None:
        """All cells of one guard. The open cut comes first, and leaves its rows in `controls`."""
        guard, seed = scene.plan.guard, scene.plan.seed
        assert self._result is not None
        for attack in self.forms[guard]:
            name = cell_name(seed, guard, attack)
            if self.store.get(name) is None:
                make = partial(self._attempted, scene, attack, marks, controls.get(repr(attack.base())))
                self._make(name, make, lambda why: {"not_tried": why})
            else:
                self.show.there("attack")
            row, pictures = self._there(name)
            if "not_tried" in row:
                self._result.not_tried.append(
                    {"guard": shown(guard), "attack": repr(attack), "seed": seed, "why": row["not_tried"]}
                )
                continue
            if guard == NoGuard() and attack == attack.base():
                controls[repr(attack.base())] = row
            self._result.rows.append(row)
            if "pictures" in pictures and seed == self.spec.seeds[0]:
                self._result.pictures[picture_key(row)] = pictures["pictures"]
        if guard in self.spoils:
            self._spoiled(scene, self.spoils[guard])
        if not scene.trained:  # all of its cells were there already
            self.show.there("training")

    def _attempted(self, scene: Scene, attack: Attack, marks: Floors, control: Row | None) -> Cell:
        what = f"{attack} against {shown(scene.plan.guard)}"
        with self.show.making("attack", what):
            self.show(what)
            return self.tried(scene, attack, marks, control)

    def tried(self, scene: Scene, attack: Attack, marks: Floors, control: Row | None) -> Cell:
        """A row and its pictures; of an attack that lacks something, what that is: the others lose nothing by it."""
        if scene.plan.guard != NoGuard() and control is None:
            return {"not_tried": f"{attack.base()} was not tried on the unguarded cut, which is its control"}, {}
        try:
            return _cell(scene, attack, marks, control, self.resources.lpips, self.spec.tries or CONTROL_TRIES)
        except NotTried as error:
            return {"not_tried": str(error)}, {}

    def _spoiled(self, scene: Scene, poison: Poison) -> None:
        """The same guard with malicious clients."""
        guard = scene.plan.guard
        name = cell_name(scene.plan.seed, guard, poison)
        if self.store.get(name) is None:
            self._make(name, lambda: (dict(scene.spoiled(poison)), {}), lambda why: {"failed": why})
        else:
            self.show.there("poisoned training")
        cell = self._there(name)
        assert self._result is not None
        if "failed" in cell[0]:
            self.left_out[f"{poison} with {shown(guard)}"] = cell[0]["failed"]
            return
        self._result.poisoned.append(cast(PoisonRow, cell[0]))

    def _recorded(self, guard: Guard) -> int:
        """How many epochs some attack on this guard wants to read together."""
        wanting = [form for form in self.forms[guard] if "passes" in form.needs]
        return max((form.epochs for form in wanting), default=0)  # type: ignore[attr-defined]

    def _client_macs(self) -> dict[str, int]:
        """What each guard has a client compute."""
        own = {shown(guard): self.plan.with_guard(guard) for guard in self.guards}
        return {name: sides(plan, self.task)["client"]["macs"] for name, plan in own.items()}

    def _by_itself(self, one: Baseline, seed: int) -> None:
        """The row of clients without a server; where there can be none, it says why."""
        assert self._result is not None
        if one.plan is None:
            self._result.alone.append(one.row(seed))
            return
        name = alone_name(seed, one)
        if self.store.get(name) is None:
            bare = one.row(seed)
            self._make(name, lambda: (self.trained_alone(one, seed), {}), lambda why: {**bare, "why_none": why})
        else:
            self.show.there("baseline")
        self._result.alone.append(self._there(name)[0])

    def _make(self, name: str, make: Callable[[], Cell], lost: Callable[[str], Any]) -> None:
        """A cell, into the store. An error is its own: it is told of in its place, and the others go on."""
        made = made_or_failed(make)
        if isinstance(made, Failed):
            self.store.remember(name, lost(str(made)))
        else:
            self.store.put(name, made[0], **made[1])

    def _there(self, name: str) -> Cell:
        cell = self.store.get(name)
        assert cell is not None
        return cell

    def trained_alone(self, one: Baseline, seed: int) -> AloneRow:
        own = self.own(seed)
        with self.show.making("baseline", one.name):
            return train_alone(
                one, own, self._data(own, seed), self.task, self.resources.device,
                lambda share: self.show(one.name, share),
            )  # fmt: skip

    def _data(self, plan: Plan, seed: int) -> Parts:
        return without_copies(self.spec.auxiliary.apply(shared_out(plan, self.loaded, seed), self.task))[0]

    def _why_unfit(self, guard: Guard) -> str | None:
        return why_unfit(self.plan, self.task, guard, self.loaded.train.y, self.counts)

    def _counts(self, seed: int) -> dict[str, int]:
        own = self.own(seed)
        data = shared_out(own, self.loaded, seed)
        return sample_counts(shares_of(own, data.private), data)

    def marks(self, open_cut: Scene) -> Floors:
        name = floors_name(open_cut.plan.seed)
        if (cell := self.store.get(name)) is None:
            marks = floors(open_cut.victim, open_cut.shared.data, open_cut.plan.seed, self.resources.lpips)
            self.store.put(name, marks)
            return marks
        return cell[0]

    def truth(self, open_cut: Scene) -> dict[str, Tensor]:
        name = truth_name(open_cut.plan.seed)
        if (cell := self.store.get(name)) is None:
            truth = {"images": open_cut.victim.truth.cpu(), "labels": open_cut.victim.y.cpu()}
            self.store.put(name, {}, **truth)
            return truth
        return cell[1]


# ----------------------------------------------------------------- what finished parts are called in the store
def cell_name(seed: int, guard: Guard, what: Attack | Poison) -> str:
    return f"{seed} | {shown(guard)} | {what}"


def lost_name(seed: int, guard: Guard) -> str:
    return f"{seed} | {shown(guard)} | does not train"


def floors_name(seed: int) -> str:
    return f"{seed} | floors"


def truth_name(seed: int) -> str:
    return f"{seed} | truth"


def alone_name(seed: int, one: Baseline) -> str:
    assert one.plan is not None
    return f"{seed} | {one.name} | {one.plan.protocol} | {one.costliest}"


def _cell(
    scene: Scene, attack: Attack, marks: Floors, control: Row | None, lpips: LPIPS | None, most: int
) -> tuple[Row, dict[str, Tensor]]:
    """One attack on one guard. On the open cut an attack that fails is tried again with other random numbers."""
    tries = range(most) if control is None else [control["tries"] - 1]
    for again in tries:
        if attack.active:
            row, pictures = _active_row(scene, attack, lpips, again)
        else:
            row, pictures = _read(attack, scene, scene.victim, lpips, again)
        failed = control["why_control_failed"] if control is not None else None
        if control is None:
            failed = why_control_failed(attack, row, marks.get("class_mean", marks["mean"]), scene.plan)
            if failed is None:
                break
    # On the open cut an attack that missed its bar is no control; behind a guard, what it found it has found.
    reason = why_invalid(row, failed, None if control is None else marks)
    whole: Row = {**scene.facts, **row, "why_control_failed": failed, "valid": reason is None, "why_invalid": reason}
    return whole, {} if pictures is None else {"pictures": pictures}


def _read(
    attack: Attack, scene: Scene, victim: Victim, lpips: LPIPS | None, again: int, attacker: Attacker | None = None
) -> tuple[Row, Tensor | None]:
    """What is sent in training. Where the guard rests in service, what is sent there as well, and the row is the one
    that found more: what is drawn in training covers nothing that is predicted."""
    given = (scene.shared.data, scene.plan.seed, lpips, again, attacker)
    row, pictures = judge(attack, victim, *given)
    if not scene.plan.guard.rests_in_service or victim.still or attack.of_training:
        return row, pictures
    served, seen = judge(attack, victim.in_service, *given)
    seconds = round(row["seconds"] + served["seconds"], 2)
    read_in = {"training": row["value"], "service": served["value"]}
    # One that diverged, or returned one picture for all, has found nothing, whatever its value.
    if (why_invalid(served, None) is None, served["value"]) > (why_invalid(row, None) is None, row["value"]):
        row, pictures = served, seen
    return {**row, "seconds": seconds, "read_in": read_in}, pictures


def _active_row(scene: Scene, attack: Attack, lpips: LPIPS | None, again: int) -> tuple[Row, Tensor | None]:
    """An active attack has a run of its own. What the guard costs is still told by the honest one."""
    run, attacker, seconds, trial = scene.hijacked(attack, again)
    victim = Victim(run, scene.shared.images)
    row, pictures = _read(attack, scene, victim, lpips, again, attacker)
    row["seconds"] = round(row["seconds"] + seconds, 2)
    row["hijacked"] = {
        "accuracy": mean(run.evaluate(run.parts.test)),
        "steps": run.progress.step,
        "epochs": run.progress.epoch,
    }
    if run.plan.client_detectors:
        row["detectors_attacked"] = trial.attacked()
    return row, pictures


def _average(per_seed: list[Floors]) -> Floors:
    """The mean of every floor over the seeds."""
    first = per_seed[0]
    return {
        name: {
            figure: None if value is None else mean(marks[name][figure] or 0.0 for marks in per_seed)
            for figure, value in first[name].items()
        }
        for name in first
    }
