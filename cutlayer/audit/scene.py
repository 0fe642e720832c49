"""One guarded training run and what an audit asks of it, made when it is first needed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from torch import nn

from ..attacks import Attack
from ..core.batch import Task
from ..core.message import Handler, Message, Watcher
from ..core.state import State
from ..data.base import Parts
from ..data.poisons import Poison
from ..engines.local.run import LocalRun
from ..training.facts.forecast import Stopwatch, forecast
from ..training.facts.link import Link
from ..training.plan.plan import PARTS, Plan
from ..training.plan.roles import Phase
from ..training.progress import StepEvent
from ..wire.ledger import TRAINING
from .detector_trial import DetectorTrial
from .facts import refuse_scored_copies, run_facts
from .hijack import Hijacked, Training, hijack
from .passes import Passed, one_pass
from .poison_trial import PoisonTrial, honest
from .progress import Cells
from .rows import DetectorRow, PoisonRow, RunFacts, shown
from .victim import Victim, scored
from .words_told import WordsTold


@dataclass(frozen=True)
class SceneContext:
    """What all guards under one seed have in common."""

    data: Parts
    task: Task
    images: int
    device: str
    show: Cells
    records: bool = False  # whether an attack wants the messages of the training
    link: Link | None = None


class Kept(NamedTuple):
    """A finished training, as another process can take it over."""

    tensors: State
    progress: dict[str, Any]
    facts: RunFacts
    history: list[Message]
    passes: list[Passed]
    bodies: list[nn.Module]


@dataclass
class Scene:
    """One guard under one seed. It is trained when a cell first needs it, and never if all are there already."""

    plan: Plan
    shared: SceneContext
    open_cut: "Scene | None" = None  # None: this is it
    told: dict[str, Any] | None = None  # what is foretold of the training over the link
    trained: bool = False
    watched: list[DetectorRow] = field(default_factory=list)  # how the plan's detectors did in honest training
    server_watched: list[DetectorRow] = field(default_factory=list)  # how those of the server did
    words: dict[str, Any] | None = None  # what weights that travelled told of texts
    history: list[Message] = field(default_factory=list)
    epochs: int = 0  # at the end of the training, of which a pass is recorded
    passes: list[Passed] = field(default_factory=list)
    bodies: list[nn.Module] = field(default_factory=list)
    given: Kept | None = None  # it was trained elsewhere
    after_epoch: Callable[[LocalRun], None] | None = None  # may raise, where going on is of no use

    @cached_property
    def run(self) -> LocalRun:
        if self.given is not None:
            return self._taken_over(self.given)
        plan, fitted = self._start()
        with self.shared.show.making("training", self._training):
            return self._trained(plan, fitted)

    @property
    def _training(self) -> str:
        return f"training with {shown(self.plan.guard)}"

    def _trained(self, plan: Plan, fitted: LocalRun | None) -> LocalRun:
        """A guard made for finished networks is fitted to the unguarded one, frozen."""
        shared, watch = self.shared, Stopwatch()
        heard: list[Watcher] = [*([self._listen] if shared.records else []), *([watch] if shared.link else [])]
        run = LocalRun(plan, shared.data, classes=shared.task.classes, device=shared.device, at_server=heard)
        if fitted is not None:
            run.start_from(fitted)
        if self.open_cut is None:  # with every guard the same are scored
            refuse_scored_copies(shared.data, scored(run, shared.images))
        trial, words = DetectorTrial(run), WordsTold(run)

        def after(event: StepEvent) -> None:
            trial()
            shared.show(self._training, event.step / max(1, event.steps))

        run.train(on_step=after, on_epoch=lambda: self._epoch_over(run))
        trial.finish()
        self.watched, self.server_watched, self.words = trial.honest(), honest(run), words.facts()
        if shared.link is not None:
            per_epoch = run.timetable.steps // max(1, run.plan.epochs)
            self.told = forecast(
                shared.link,
                run.ledger,
                watch,
                seconds=run.progress.seconds,
                steps=run.progress.step,
                per_epoch=per_epoch,
                ahead=run.timetable.ahead,
            )
        run.use_best()
        self.trained = True
        return run

    def kept(self) -> Kept:
        """All that attacks on it need, without the way there."""
        facts = self.facts
        tensors, progress = self.run.snapshot()
        bare = {name: t.cpu() for name, t in tensors.items() if not name.startswith("best/")}
        return Kept(bare, progress, facts, self.history, self.passes, self.bodies)

    def _taken_over(self, kept: Kept) -> LocalRun:
        plan, fitted = self._start()
        run = LocalRun(plan, self.shared.data, classes=self.shared.task.classes, device=self.shared.device)
        if fitted is not None:  # what does not train is in no snapshot
            run.start_from(fitted)
        run.restore(kept.tensors, kept.progress)
        self.history, self.passes, self.bodies, self.trained = kept.history, kept.passes, kept.bodies, True
        return run

    def hijacked(self, attack: Attack, again: int) -> Hijacked:
        """The same training with an active attacker at the server."""
        plan, fitted = self._start()
        plan = replace(plan, server_detectors=())  # the attacker would be watching
        what = f"{attack} trains with {shown(self.plan.guard)}"
        return hijack(
            attack,
            Training(plan, self.shared.data, self.shared.task, self.shared.device, fitted),
            again=again,
            images=min(self.shared.images, 128),
            on_step=lambda p: self.shared.show(what, p.step / max(1, p.steps)),
        )

    def spoiled(self, poison: Poison) -> PoisonRow:
        """The same training with malicious clients. The server is honest here, so no client watches it."""
        plan = replace(self.plan, poison=poison, client_detectors=())
        run = LocalRun(plan, self.shared.data, classes=self.shared.task.classes, device=self.shared.device)
        trial, what = PoisonTrial(run), f"{poison} trains with {shown(self.plan.guard)}"

        def between_turns() -> bool:
            trial()
            return False

        with self.shared.show.making("poisoned training", what):
            self.shared.show(what)
            run.train(
                on_step=lambda event: self.shared.show(what, event.step / max(1, event.steps)),
                on_epoch=trial,
                stop=between_turns,
            )
            run.use_best()
        return cast(PoisonRow, {"guard": shown(plan.guard), "seed": plan.seed, **trial.told()})

    def _start(self) -> tuple[Plan, LocalRun | None]:
        if not self.plan.guard.post_hoc or self.open_cut is None:
            return self.plan, None
        fitted = self.open_cut.run
        # Where nothing learns, neither a server nor a client can lead anybody astray.
        return replace(self.plan, frozen_parts=PARTS, client_detectors=(), server_detectors=()), fitted

    def _listen(self, message: Message, handle: Handler) -> Message:
        if message.client == 0 and message.kind in TRAINING:
            self.history.append(message)
        return handle(message)

    def _epoch_over(self, run: LocalRun) -> None:
        self._record(run)
        if self.after_epoch is not None:
            self.after_epoch(run)

    def _record(self, run: LocalRun) -> None:
        if self.shared.records:
            self.bodies.append(copy.deepcopy(run.server.body))
        # One that may stop early has to be recorded all along; epochs without activations have nothing to record.
        plan, sending = run.plan, (Phase.SPLIT, Phase.SEND)
        told = [one for one in range(plan.epochs) if plan.roles.phase(one) in sending]
        if self.epochs and run.progress.epoch - 1 in (told if plan.patience else told[-self.epochs :]):
            self.passes = [*self.passes, one_pass(run, run.progress.epoch, self.shared.images)][-self.epochs :]

    @cached_property
    def victim(self) -> Victim:
        victim = Victim(self.run, self.shared.images)
        victim.history = self.history if self.shared.records else None
        victim.bodies, victim.passes = self.bodies or None, self.passes
        return victim

    @cached_property
    def facts(self) -> RunFacts:
        if self.given is not None:
            return self.given.facts
        found = run_facts(self.run, self.victim)
        if self.shared.link is not None:
            found["link"] = self.told
        if self.words is not None:
            found["words_told"] = self.words
        if self.server_watched:
            found["server_detectors"] = self.server_watched
        if self.watched:
            found["detectors_honest"] = self.watched
        return found
