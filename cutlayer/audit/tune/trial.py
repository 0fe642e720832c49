"""One guard, ruled out as cheaply as it can be: by its cost, its accuracy, a linear reader, one that learns.

Each stage is a lower bound of what the next one finds, so a guard that is out stays out: what a ridge regression
reads, the full attack reads as well, for it counts among its readers. The full attack itself costs several times the
training of a small network: it is left to those that promise most once all were tried (`finish`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log, sqrt
from statistics import mean, stdev
from typing import Any, NamedTuple

from ...attacks import Attack, Decoder
from ...core.errors import NonFinite
from ...data.base import Loaded
from ...engines.local.run import LocalRun
from ...guards import Guard, NoGuard
from ...metrics.lpips import LPIPS
from ...training.batches import task_of
from ..compare.run import validated
from ..detector_trial import on_trial
from ..fit import why_unfit
from ..jobs import FAILED
from ..matrix import Matrix
from ..rows import Floors, Row, shown
from ..scene import Scene, SceneContext
from ..spec import AuditSpec, Resources
from ..verdicts import total_bytes, verdict
from .budget import Budget, cost, refuse_contradiction

CHEAP = Decoder(readers=("ridge",))
ONE = ("mlp",)  # of a decoder's readers the one that reads messages of any shape
MOST_KEPT = 16  # trained networks that wait for the full attack where they were trained; more are trained again
FAR = 1.5  # times the budget: an untrained network's message may shrink with training, but not by so much
LEAST_EPOCHS = 3  # of a training before its end is foreseen
NOISE = 1.0  # point of accuracy: one seed tells no finer


class Reference(NamedTuple):
    """The unguarded cut: what all shares and losses are taken of."""

    accuracy: float
    chance: float
    bytes: float
    floors: Floors
    rows: list[Row]  # of the cheap reader and of the full attack
    curve: Sequence[float] = ()  # validation accuracy by epoch


class Tried(NamedTuple):
    """What became of a guard. Figures that its stage did not reach are None; `leak` is a lower bound unless whole."""

    guard: str
    stage: str  # the last one it reached: "fit", "cost", "training", "reader", "attack"
    why: str | None = None  # it went no further
    leak: float | None = None
    loss: float | None = None
    bytes: float | None = None
    client_macs: int | None = None
    accuracy: float | None = None
    bytes_total: float | None = None
    ssim: float | None = None
    seconds: float = 0.0
    trainings: int = 1  # under as many seeds; loss and accuracy are their means
    doubt: float | None = None  # standard error of that loss, in points

    @property
    def whole(self) -> bool:
        return self.stage == "attack"

    @property
    def failed(self) -> bool:
        """By an error, which says nothing about it."""
        return self.why is not None and self.why.startswith(FAILED)

    @property
    def waits(self) -> bool:
        """No cheap reader ruled it out, and the full attack has not read it."""
        return self.stage == "reader" and self.why is None

    @property
    def ended_early(self) -> bool:
        """Its training was: `loss` is what it would have lost at least."""
        return self.stage == "training" and self.accuracy is None


class Hopeless(Exception):
    """A training that its limits rule out before its end."""

    def __init__(self, best: float, epoch: int, epochs: int):
        super().__init__(f"over loss after {epoch} of {epochs} epochs")
        self.best = best


def readings(attacks: Sequence[Attack]) -> tuple[Attack, ...]:
    """The attacks of a search: a linear reader, one that learns for as long as the full attack, and that one."""
    full = next((one for one in attacks if isinstance(one, Decoder)), Decoder.sized("quick"))
    return tuple(dict.fromkeys((CHEAP, replace(full, readers=ONE), *attacks)))


@dataclass
class TuneWork:
    """What all trials share. In a process that computes, the unguarded cut is trained once, and only if needed."""

    spec: AuditSpec  # the plan, the full attack, one seed
    loaded: Loaded
    budget: Budget
    device: str = "cpu"
    lpips: LPIPS | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("spec", "loaded", "budget", "device", "lpips")
        return {name: getattr(self, name) for name in names}

    @property
    def seed(self) -> int:
        return self.spec.seeds[0]

    @property
    def validating(self) -> int:
        """Samples that tell how accurate a network is."""
        return len(self.context.data.val) or len(self.context.data.test)

    def matrix(self, guard: Guard) -> Matrix:
        return Matrix(replace(self.spec, guards=(guard,)), self.loaded, Resources(self.device, self.lpips))

    def under(self, seed: int) -> "TuneWork":
        """The same under another seed."""
        if seed not in self._others:
            self._others[seed] = replace(self, spec=replace(self.spec, seeds=(seed,)))
        return self._others[seed]

    def scene(self, guard: Guard) -> Scene:
        """Trained here, or to be trained: a network that was forgotten is the same, bit for bit, once more."""
        if guard not in self._scenes:
            if len(self._scenes) == MOST_KEPT:
                self.forget(next(iter(self._scenes)))
            self._scenes[guard] = self.matrix(guard).scene(self.seed, guard, self.context, self.open_cut)
        return self._scenes[guard]

    def forget(self, guard: Guard) -> None:
        self._scenes.pop(guard, None)

    @cached_property
    def _scenes(self) -> dict[Guard, Scene]:
        return {}

    @cached_property
    def _others(self) -> "dict[int, TuneWork]":
        return {}

    @cached_property
    def counts(self) -> list[dict[str, int]]:
        return self.matrix(NoGuard()).counts

    @cached_property
    def context(self) -> SceneContext:
        return self.matrix(NoGuard()).context(self.seed)

    @cached_property
    def open_cut(self) -> Scene:
        return self.matrix(NoGuard()).scene(self.seed, NoGuard(), self.context)


@on_trial()
def reference(work: TuneWork) -> Reference:
    """The unguarded cut, read by the cheap reader and by the full attack."""
    matrix, scene = work.matrix(NoGuard()), work.open_cut
    refuse_contradiction(work.budget, _accuracy(scene), len(work.loaded.classes))  # before it is attacked
    marks = matrix.marks(scene)
    rows = [row for one in matrix.forms[NoGuard()] if (row := _row(matrix, scene, one, marks, None)) is not None]
    facts = scene.facts
    return Reference(_accuracy(scene), facts["accuracy_chance"], message_bytes(facts), marks, rows, _curve(scene.run))


@on_trial()
def sends(work: TuneWork, guard: Guard) -> float | None:
    """Bytes of a sample as the untrained network sends it; None: the guard does not fit this plan."""
    return _costed(work, guard).bytes


@on_trial()
def attempt(work: TuneWork, guard: Guard, open_cut: Reference) -> Tried:
    """Try one guard, a stage at a time, up to what two cheap readers make of it."""
    found = _costed(work, guard)
    if found.why is None:
        found = _trained(work, guard, open_cut, found)
    for readers, said in ((CHEAP.readers, "a linear reader"), (ONE, "one reader")):
        if found.why is None:
            found = _read(work, guard, open_cut, found._replace(stage="reader"), partial(_reads, readers))
            missed = work.budget.over({"leak": found.leak})
            found = found._replace(why=_missed(missed, f"by {said}") if missed else None)
    if not found.waits:
        work.forget(guard)
    return found


@on_trial()
def finish(work: TuneWork, guard: Guard, open_cut: Reference, found: Tried) -> Tried:
    """What the full attack makes of one that waits for it."""
    found = _read(work, guard, open_cut, found, _is_full)
    work.forget(guard)
    return found._replace(stage="attack")


@on_trial()
def again(work: TuneWork, guard: Guard, seed: int) -> float | None:
    """Its accuracy under another seed: other weights, other private samples. None: it does not train."""
    other = work.under(seed)
    try:
        return _accuracy(other.open_cut if guard == NoGuard() else other.scene(guard))
    except NonFinite:
        return None
    finally:
        other.forget(guard)


def over_seeds(found: Tried, budget: Budget, open_cuts: Sequence[float], own: Sequence[float]) -> Tried:
    """With the mean of what it lost under this seed and others, where accuracies of the unguarded cut and its own are
    these. It is out where the mean is over the limit by more than its standard error."""
    assert found.loss is not None and found.accuracy is not None
    losses = [found.loss, *(100 * (bare - guarded) for bare, guarded in zip(open_cuts, own, strict=True))]
    doubt = stdev(losses) / sqrt(len(losses))
    missed = budget.over({"loss": mean(losses) - doubt})
    return found._replace(
        loss=mean(losses), accuracy=mean([found.accuracy, *own]), trainings=len(losses), doubt=doubt,
        why=_missed(missed, "under other seeds") if missed else found.why,
    )  # fmt: skip


def _costed(work: TuneWork, guard: Guard) -> Tried:
    task = task_of(work.loaded.train, len(work.loaded.classes))
    if (why := why_unfit(work.spec.plan, task, guard, work.loaded.train.y, work.counts)) is not None:
        return Tried(repr(guard), "fit", why)
    known = cost(work.spec.plan.with_guard(guard), task)
    found = Tried(repr(guard), "cost", bytes=known.bytes, client_macs=known.client_macs)
    missed = work.budget.over({"bytes": known.bytes / FAR, "client_macs": known.client_macs})
    return found._replace(why=_missed(missed, "before training")) if missed else found


def _trained(work: TuneWork, guard: Guard, open_cut: Reference, found: Tried) -> Tried:
    scene = work.scene(guard)
    allowed = _allowed(work, open_cut)
    if allowed is not None:
        scene.after_epoch = partial(_end_if_hopeless, open_cut, allowed)
    try:
        facts = scene.facts
    except NonFinite as error:
        return found._replace(why=str(error), stage="training")
    except Hopeless as error:
        return found._replace(why=str(error), stage="training", loss=100 * (open_cut.accuracy - error.best))
    accuracy, size = _accuracy(scene), message_bytes(facts)
    loss = 100 * (open_cut.accuracy - accuracy)
    missed = work.budget.over({"bytes": size})
    if allowed is not None and loss > allowed:
        missed |= work.budget.over({"loss": loss})
    return found._replace(
        stage="training", accuracy=accuracy, loss=loss, bytes=size, bytes_total=total_bytes(facts),  # type: ignore[arg-type]
        seconds=facts["train_seconds"], why=_missed(missed, "after training") if missed else None,
    )  # fmt: skip


def _allowed(work: TuneWork, open_cut: Reference) -> float | None:
    """Points that a training may lose and stay: the limit, and what so few samples cannot tell apart."""
    if work.budget.loss is None:
        return None
    return work.budget.loss + noise(open_cut.accuracy, work.validating)


def noise(accuracy: float, samples: int) -> float:
    """Points: a standard error of the difference of two such accuracies (binomial), and one at least."""
    return max(NOISE, 100 * sqrt(2 * accuracy * (1 - accuracy) / max(1, samples)))


def _end_if_hopeless(open_cut: Reference, allowed: float, run: LocalRun) -> None:
    curve = _curve(run)
    best = foreseen(curve, run.plan.epochs, open_cut.curve)
    if best is not None and 100 * (open_cut.accuracy - best) > allowed:
        raise Hopeless(best, len(curve), run.plan.epochs)


def foreseen(curve: Sequence[float], epochs: int, open_curve: Sequence[float]) -> float | None:
    """The most that a training can be expected to reach: curves flatten, so twice the epochs bring less than they
    did the last time they were doubled; or as much as the unguarded cut still gained from there, if that is more
    (rates may fall towards the end). None: too early to say."""
    done = len(curve)
    if done < LEAST_EPOCHS or done >= min(epochs, len(open_curve)):
        return None
    half = done // 2
    lately = (max(curve) - max(curve[:half])) * log(epochs / done) / log(done / half)
    return max(curve) + max(lately, max(open_curve) - max(open_curve[:done]))


def _curve(run: LocalRun) -> list[float]:
    return [row["val"] for row in run.progress.history if "val" in row]


def _read(work: TuneWork, guard: Guard, open_cut: Reference, found: Tried, wanted: Callable[[Attack], bool]) -> Tried:
    """With what these attacks find. A guard is as good as against the best of all that read it."""
    matrix, scene = work.matrix(guard), work.scene(guard)
    controls = {row["attack"]: row for row in open_cut.rows}
    forms = [one for one in matrix.forms[guard] if wanted(one)]
    made = (_row(matrix, scene, one, open_cut.floors, controls.get(repr(one.base()))) for one in forms)
    rows = [row for row in made if row is not None]
    return found._replace(
        leak=_most(found.leak, _leak(rows, open_cut, guard)), ssim=_most(found.ssim, *(row["value"] for row in rows)),
        seconds=found.seconds + sum(row["seconds"] for row in rows),
    )  # fmt: skip


def _most(*figures: float | None) -> float | None:
    return max((one for one in figures if one is not None), default=None)


def _reads(readers: tuple[str, ...], attack: Attack) -> bool:
    return isinstance(attack, Decoder) and attack.readers == readers


def _is_full(attack: Attack) -> bool:
    return not (_reads(CHEAP.readers, attack) or _reads(ONE, attack))


def _row(matrix: Matrix, scene: Scene, attack: Attack, marks: Floors, control: Row | None) -> Row | None:
    row, _ = matrix.tried(scene, attack, marks, control)
    return None if "not_tried" in row else row


def _leak(rows: list[Row], open_cut: Reference, guard: Guard) -> float | None:
    """As the verdict of an audit has it: of the worst secret that an attack was after."""
    return verdict([*open_cut.rows, *rows], open_cut.floors, shown(guard)).leak if rows else None


def _accuracy(scene: Scene) -> float:
    """On samples held out for choosing; where a plan holds none out, on the test set."""
    chosen = validated(scene.run)
    return scene.facts["accuracy"] if chosen is None else chosen


def message_bytes(facts: Any) -> float:
    """Bytes of a sample's activations on their way up."""
    counted = facts["rates"]["by message"]
    return counted.get("FORWARD up", counted.get("LOSS up", 0.0))


def _missed(over: dict[str, float], when: str) -> str:
    return f"over {' and '.join(over)} {when}"
