"""An audit as jobs: train(seed, guard) → attack(seed, guard, attack), with the open cut first, which is the control.

Workers make cells and write nothing; here they go to the store, from which `audit` makes its table as if it had made
them itself.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from torch import Tensor

from ..attacks import Attack
from ..core.errors import NonFinite
from ..data.base import Loaded
from ..guards import Guard, NoGuard
from ..metrics.lpips import LPIPS
from .detector_trial import on_trial
from .jobs import Failed, Job, Result
from .matrix import Matrix, alone_name, cell_name, floors_name, lost_name, truth_name
from .rows import AloneRow, Floors, Row, shown
from .scene import Kept, Scene, SceneContext
from .spec import AuditSpec, Resources

Cells = dict[str, tuple[Any, dict[str, Tensor]]]  # what a job has finished, by its name in the store


class AuditWork:
    """What all jobs of an audit share. In a process that computes, what follows from it is made once."""

    def __init__(self, spec: AuditSpec, loaded: Loaded, device: str, lpips: LPIPS | None):
        self.spec, self.loaded, self.device, self.lpips = spec, loaded, device, lpips

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("spec", "loaded", "device", "lpips")}

    @cached_property
    def matrix(self) -> Matrix:
        lpips = None if self.lpips is None else self.lpips.to(self.device)
        self._contexts: dict[int, SceneContext] = {}
        self._scenes: dict[tuple[int, str], Scene] = {}
        return Matrix(self.spec, self.loaded, Resources(self.device, lpips))

    def scene(self, seed: int, guard: Guard, kept: Kept | None = None, open_cut: Kept | None = None) -> Scene:
        """`kept`: as it was trained elsewhere. One that was used last lies ready: the next attack may want it."""
        matrix, key = self.matrix, (seed, repr(guard))
        if key not in self._scenes:
            if seed not in self._contexts:
                self._contexts = {seed: matrix.context(seed)}
            below = None if open_cut is None else self.scene(seed, NoGuard(), open_cut)
            made = matrix.scene(seed, guard, self._contexts[seed], below)
            made.given = kept
            self._scenes = {key: made}
        return self._scenes[key]


# --------------------------------------------------------------------------------- what a worker does
@on_trial()
def train(work: AuditWork, seed: int, guard: Guard, open_cut: Kept | None) -> Kept:
    return work.scene(seed, guard, open_cut=open_cut).kept()


@on_trial()
def mark(work: AuditWork, seed: int, kept: Kept, with_truth: bool) -> Cells:
    """Floors of a seed, and the truth behind the pictures where they are the first seed's."""
    scene = work.scene(seed, NoGuard(), kept)
    found: Cells = {floors_name(seed): (work.matrix.marks(scene), {})}
    return found | ({truth_name(seed): ({}, work.matrix.truth(scene))} if with_truth else {})


@on_trial()
def attack(
    work: AuditWork, seed: int, guard: Guard, one: Attack, kept: Kept, open_cut: Kept | None, marks: Any, control: Any
) -> Cells:
    name = cell_name(seed, guard, one)
    scene = work.scene(seed, guard, kept, open_cut)
    row = _row(control, cell_name(seed, NoGuard(), one.base()))
    return {name: work.matrix.tried(scene, one, _floors(marks, seed), row)}


@on_trial()
def spoil(work: AuditWork, seed: int, guard: Guard) -> Cells:
    poison = work.matrix.spoils[guard]
    return {cell_name(seed, guard, poison): (work.scene(seed, guard).spoiled(poison), {})}


def alone(work: AuditWork, seed: int, place: int) -> Cells:
    one = work.matrix.alone[place]
    return {alone_name(seed, one): (work.matrix.trained_alone(one, seed), {})}


def _floors(marks: Any, seed: int) -> Floors:
    """From the store of an earlier run, or as `mark` made them."""
    return marks[floors_name(seed)][0] if floors_name(seed) in marks else marks


def _row(control: Any, name: str) -> Row | None:
    """The control's row, if it could be tried; this is it where there is none."""
    row = None if control is None else control[name][0]
    return None if row is None or "not_tried" in row else row


# ------------------------------------------------------------------------------ what the driver wants
class Stages:
    """The jobs of what a store lacks, and what becomes of their results."""

    def __init__(self, spec: AuditSpec, loaded: Loaded, resources: Resources):
        self.matrix = Matrix(spec, loaded, resources)
        self.seeds, self.store = spec.seeds, resources.store
        self._lost: dict[str, Callable[[Failed], None]] = {}

    def jobs(self) -> list[Job]:
        """In the order in which they are worth beginning: what others wait for comes first."""
        found = [job for seed in self.seeds for job in self._of_seed(seed)]
        first = {name: place for place, name in enumerate(("train", "mark", "attack", "spoil", "alone"))}
        controls = {one for job in found for one in job.after}
        return sorted(found, key=lambda job: (job.name not in controls, first[job.work.__name__]))

    def _of_seed(self, seed: int) -> Iterator[Job]:
        open_name = _training(seed, NoGuard())
        attacks = [job for guard in self.matrix.guards for job in self._attacks(seed, guard)]
        marks = [self._marks(seed)] if self._lacks_marks(seed) else []
        wanted = {name for job in [*attacks, *marks] for name in job.after}
        fitted = [guard for guard in self.matrix.guards if guard.post_hoc and _training(seed, guard) in wanted]
        for guard in self.matrix.guards:
            name = _training(seed, guard)
            if name in wanted or (name == open_name and fitted):
                below = Result(open_name) if guard in fitted else None
                yield self._job(name, train, (seed, guard, below), self._no_training(seed, guard), stays=True)
        yield from [*marks, *attacks]
        for guard, poison in self.matrix.spoils.items():
            if self.store.get(cell := cell_name(seed, guard, poison)) is None and not self._is_lost(seed, guard):
                yield self._job(cell, spoil, (seed, guard), self._not_made(cell))
        for place, one in enumerate(self.matrix.alone):
            if one.plan is not None and self.store.get(cell := alone_name(seed, one)) is None:
                yield self._job(cell, alone, (seed, place), self._none_alone(cell, one.row(seed)))

    def _attacks(self, seed: int, guard: Guard) -> Iterator[Job]:
        if self._is_lost(seed, guard):
            return
        own, open_cut = Result(_training(seed, guard)), Result(_training(seed, NoGuard())) if guard.post_hoc else None
        marks = self.store.get(floors_name(seed))
        told = Result(floors_name(seed)) if self._lacks_marks(seed) else marks and marks[0]
        for one in self.matrix.forms[guard]:
            cell = cell_name(seed, guard, one)
            if self.store.get(cell) is not None:
                continue
            control, above = None, cell_name(seed, NoGuard(), one.base())
            if cell != above and one.base() in self.matrix.forms[NoGuard()]:
                there = self.store.get(above)
                control = Result(above) if there is None else {above: there}
            given = (seed, guard, one, own, open_cut, told, control)
            yield self._job(cell, attack, given, self._not_tried(seed, guard, cell))

    def _marks(self, seed: int) -> Job:
        truth = seed == self.seeds[0] and self.store.get(truth_name(seed)) is None
        given = (seed, Result(_training(seed, NoGuard())), truth)
        return self._job(floors_name(seed), mark, given, self._fatal)

    def _lacks_marks(self, seed: int) -> bool:
        truth = seed != self.seeds[0] or self.store.get(truth_name(seed)) is not None
        return self.store.get(floors_name(seed)) is None or not truth

    def _is_lost(self, seed: int, guard: Guard) -> bool:
        return self.store.get(lost_name(seed, guard)) is not None

    def _job(
        self, name: str, work: Callable[..., Any], given: tuple[Any, ...], lost: Callable[[Failed], None],
        stays: bool = False,
    ) -> Job:  # fmt: skip
        self._lost[name] = lost
        return Job(name, work, given, stays)

    # ------------------------------------------------------------------------------ results
    def take(self, job: Job, made: Any) -> None:
        if isinstance(made, Failed):
            self._lost[job.name](made)
        elif not job.stays:
            for name, (data, tensors) in made.items():
                self.store.put(name, data, **tensors)

    def _no_training(self, seed: int, guard: Guard) -> Callable[[Failed], None]:
        def lost(why: Failed) -> None:
            if guard == NoGuard():
                self._fatal(why)
            elif isinstance(why.error, NonFinite):
                self.store.put(lost_name(seed, guard), {"why": f"with seed {seed} {why.error}"})
            else:
                self.store.remember(lost_name(seed, guard), {"why": f"with seed {seed} {why}"})

        return lost

    def _not_tried(self, seed: int, guard: Guard, cell: str) -> Callable[[Failed], None]:
        def lost(why: Failed) -> None:
            if not self._is_lost(seed, guard):  # else the guard is left out, and has no rows
                self.store.remember(cell, {"not_tried": str(why)})

        return lost

    def _not_made(self, cell: str) -> Callable[[Failed], None]:
        return lambda why: self.store.remember(cell, {"failed": str(why)})

    def _none_alone(self, cell: str, bare: AloneRow) -> Callable[[Failed], None]:
        return lambda why: self.store.remember(cell, {**bare, "why_none": str(why)})

    def _fatal(self, why: Failed) -> None:
        """Nothing can be judged without the open cut."""
        raise why.error if why.error is not None else RuntimeError(f"the open cut could not be trained: {why.why}")


def _training(seed: int, guard: Guard) -> str:
    return f"{seed} | {shown(guard)} | training"
