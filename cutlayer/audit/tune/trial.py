"""One guard, ruled out as cheaply as it can be: by its cost, its accuracy, a linear reader, and then all of them.

Each stage is a lower bound of what the next one finds, so a guard that is out stays out: what a ridge regression
reads, the full attack reads as well, for it counts among its readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ...attacks import Attack, Decoder
from ...core.errors import NonFinite
from ...data.base import Loaded
from ...guards import Guard, NoGuard
from ...metrics.lpips import LPIPS
from ...training.batches import task_of
from ..compare.run import validated
from ..detector_trial import on_trial
from ..matrix import Matrix, why_unfit
from ..rows import Floors, Row, shown
from ..scene import Scene, SceneContext
from ..spec import AuditSpec, Resources
from ..verdicts import total_bytes, verdict
from .budget import Budget, cost

CHEAP = Decoder(readers=("ridge",))
FAR = 1.5  # times the budget: an untrained network's message may shrink with training, but not by so much
NOISE = 1.0  # point of accuracy: one seed tells no finer


class Reference(NamedTuple):
    """The unguarded cut: what all shares and losses are taken of."""

    accuracy: float
    chance: float
    bytes: float
    floors: Floors
    rows: list[Row]  # of the cheap reader and of the full attack


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

    @property
    def whole(self) -> bool:
        return self.stage == "attack"


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

    def matrix(self, guard: Guard) -> Matrix:
        return Matrix(replace(self.spec, guards=(guard,)), self.loaded, Resources(self.device, self.lpips))

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
    marks = matrix.marks(scene)
    rows = [row for one in matrix.forms[NoGuard()] if (row := _row(matrix, scene, one, marks, None)) is not None]
    facts = scene.facts
    return Reference(_accuracy(scene), facts["accuracy_chance"], message_bytes(facts), marks, rows)


@on_trial()
def attempt(work: TuneWork, guard: Guard, open_cut: Reference, rivals: Sequence[Sequence[Any]] = ()) -> Tried:
    """Try one guard, a stage at a time.

    `rivals`: leak, loss and bytes of those that the full attack has read. What is worse than one of them in all three
    to a linear reader already can be on no front.
    """
    task = task_of(work.loaded.train, len(work.loaded.classes))
    if (why := why_unfit(work.spec.plan, task, guard, work.loaded.train.y)) is not None:
        return Tried(repr(guard), "fit", why)
    known = cost(work.spec.plan.with_guard(guard), task)
    found = Tried(repr(guard), "cost", bytes=known.bytes, client_macs=known.client_macs)
    early = {"bytes": known.bytes / FAR, "client_macs": known.client_macs}
    if missed := work.budget.over(early):
        return found._replace(why=_missed(missed, "before training"))
    matrix = work.matrix(guard)
    scene = matrix.scene(work.seed, guard, work.context, work.open_cut)
    try:
        facts = scene.facts
    except NonFinite as error:
        return found._replace(why=str(error), stage="training")
    accuracy = _accuracy(scene)
    loss = 100 * (open_cut.accuracy - accuracy)
    found = found._replace(
        stage="training", accuracy=accuracy, loss=loss, bytes=message_bytes(facts), bytes_total=total_bytes(facts),  # type: ignore[arg-type]
        seconds=facts["train_seconds"],
    )  # fmt: skip
    if missed := work.budget.over({"loss": loss - NOISE, "bytes": found.bytes}):
        return found._replace(why=_missed(missed, "after training"))
    rows: list[Row] = []
    controls = {row["attack"]: row for row in open_cut.rows}
    cheap = [one for one in matrix.forms[guard] if _is_cheap(one)]
    others = [one for one in matrix.forms[guard] if not _is_cheap(one)]
    for stage, those in (("reader", cheap), ("attack", others)):
        for one in those:
            row = _row(matrix, scene, one, open_cut.floors, controls.get(repr(one.base())))
            rows += [] if row is None else [row]
        leak = _leak(rows, open_cut, guard)
        best = max((row["value"] for row in rows), default=None)
        took = found.seconds + sum(row["seconds"] for row in rows)
        found = found._replace(
            stage=stage, leak=leak, ssim=best, seconds=took if stage == "attack" else found.seconds
        )
        if stage == "reader" and (missed := work.budget.over({"leak": leak})):
            return found._replace(why=_missed(missed, "by a linear reader"), seconds=took)
        if stage == "reader" and any(_beaten(found, one) for one in rivals):
            return found._replace(
                why="another leaks, loses and sends no more than this by a linear reader", seconds=took
            )
    return found


def _beaten(found: Tried, one: Sequence[Any]) -> bool:
    ours = (found.leak, found.loss, found.bytes)
    return all(mine is not None and theirs <= mine for mine, theirs in zip(ours, one, strict=True))


def _is_cheap(attack: Attack) -> bool:
    return isinstance(attack, Decoder) and attack.readers == CHEAP.readers


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
