"""A client's detectors at work: they look at every step, and stop the client before it sends anything more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.errors import Halt
from ..core.message import Handler, Message
from ..core.split import each
from ..detectors import ClientAssets, ClientContext, Detector, SentBatch, StepView, Watch
from .awaited import Figures
from .step import NO_HOOKS, ClientNetwork, StepHooks, learn

Honest = Callable[[int], Iterator[tuple[ClientNetwork, Batch]]]  # a client against an honest server, batch by batch
KEPT = "watch."  # how the names begin of what detectors remember, among a client's state


class ClientDetection:
    """All detectors of one client. They begin with the first step; what cannot be watched is refused before it."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        task: Task,
        batch: int,
        seed: int,
        honest: Honest,
        apart: bool = True,
        own: ClientAssets | None = None,
    ):
        def rehearsal(steps: int) -> Iterator[StepView]:
            for client, one in honest(steps):
                yield _look(client, one, None)[1]

        self.detectors, self._context = detectors, ClientContext(task, batch, seed, rehearsal, apart, own)
        for one in detectors:
            one.refuse_unfit(self._context)
        self._gradients = any(one.reads_gradients for one in detectors)
        self.meters = True  # whether those that only say how much leaks are at work, which is dear
        self._made: list[tuple[Detector, Watch]] | None = None
        self._kept: Mapping[str, Tensor] = {}  # what they remembered when the client was last put down
        self._courses: list[list[tuple[int, float]]] = []

    @property
    def watches(self) -> list[tuple[Detector, Watch]]:
        """Those at work. What they know of honest servers they learn when they are first asked for."""
        if self._made is None:
            self._made = [(one, one.watch(self._context)) for one in self.detectors]
            self._courses = [[] for _ in self._made]
            for place, (one, watch) in enumerate(self._made):
                self._recall(_prefix(place, one), watch, self._courses[place])
        return self._made

    @property
    def _heard(self) -> list[tuple[Detector, Watch]]:
        """Those that have seen a step, also where that was before the client was last put down."""
        return self.watches if self._made is not None or self._kept else []

    def learn(self, client: ClientNetwork, batch: Batch, hooks: StepHooks = NO_HOOKS) -> dict[str, float]:
        """One step, or a probe in its place, of which the loss says nothing. `halt_if_alarmed` comes after it."""
        for _, watch in self.watches:
            if watch.guard is not None:
                client.split.guard = watch.guard
        fakes = (watch.probe(client.steps, batch.y) for _, watch in self.watches)
        fake = next((fake for fake in fakes if fake is not None), None)
        values, look = _look(client, batch, fake, self._gradients, hooks)
        for (one, watch), course in zip(self.watches, self._courses, strict=True):
            if self.meters or one.suspects:
                watch.look(look)
            if watch.score is not None:
                watch.score = float(watch.score)  # a tensor of one number is one, too, but no file's
                if not course or course[-1][1] != watch.score:
                    course.append((look.step, watch.score))
        return {**({} if look.fake else values), **self.scores()}

    def scores(self) -> dict[str, float]:
        """The newest of each detector that has one."""
        found = ((type(one).__name__, watch.score) for one, watch in self._heard)
        return {name: score for name, score in found if score is not None} | self.figures()

    def figures(self) -> dict[str, float]:
        return {name: float(value) for _, watch in self._heard for name, value in watch.figures.items()}

    def finish(self) -> None:
        """Nothing more will be sent: for those that have a last word."""
        for _, watch in self._heard:
            watch.finish()

    def halt_if_alarmed(self, client: int) -> None:
        for one, watch in self._made or ():
            if watch.alarm:
                raise Halt(f"client {client} has stopped: {type(one).__name__}: {watch.alarm}. Nothing more was sent")

    def alarms(self) -> list[tuple[str, str]]:
        """(detector, why) of those that call, which are silenced: for trials, where nobody stops."""
        found = [(repr(one), watch) for one, watch in self._made or () if watch.alarm]
        told = [(name, watch.alarm) for name, watch in found]
        for _, watch in found:
            watch.alarm = ""
        return told

    def report(self) -> list[dict[str, Any]]:
        """Each detector with its scores over time: (step, score) wherever it changed."""
        return [
            {
                "detector": repr(one),
                "score": watch.score,
                "lowest": min((score for _, score in course), default=None),
                "scores": [[step, score] for step, score in course],
                "alarm": watch.alarm,
                **watch.report(),
            }
            for (one, watch), course in zip(self._heard, self._courses, strict=True)
        ]

    # ----------------------------------------------------------------- a client that is put down and taken up
    def tensors(self) -> dict[str, Tensor]:
        """What they remember, alarms excepted: who goes on from a snapshot goes on watching."""
        found: dict[str, Tensor] = {}
        for place, (one, watch) in enumerate(self._made or ()):
            own = watch.tensors() | {"course": torch.tensor(self._courses[place], dtype=torch.float64).reshape(-1, 2)}
            found |= {_prefix(place, one) + name: tensor.clone() for name, tensor in own.items()}
        return found if self._made is not None else {name: t.clone() for name, t in self._kept.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to what `tensors` once was; nothing: to before the first step."""
        self._made, self._kept = None, dict(tensors)

    def _recall(self, prefix: str, watch: Watch, course: list[tuple[int, float]]) -> None:
        own = {name.removeprefix(prefix): t for name, t in self._kept.items() if name.startswith(prefix)}
        if own:
            course += [(int(step), score) for step, score in own.pop("course").tolist()]
            watch.score = course[-1][1] if course else None
            watch.load(own)


def _prefix(place: int, one: Detector) -> str:
    return f"{KEPT}{place}.{type(one).__name__}."


def _look(
    client: ClientNetwork, batch: Batch, fake: Tensor | None, gradients: bool = True, hooks: StepHooks = NO_HOOKS
) -> tuple[Figures, StepView]:
    """One step and what its client sees of it. With wrong labels nothing of the client's is updated."""
    step, seen, left = client.steps, list[Tensor](), list[Tensor]()
    hook = client.split.guard.register_forward_hook(
        lambda module, given, guarded: left.append(each(*module.unmixed(guarded.seen.detach(), guarded.rows)))
    )
    answers: list[Tensor] = []

    def listen(message: Message, send: Handler) -> Message:
        reply = send(message)
        answers.extend([reply["dz"]] if "dz" in reply.tensors else [])
        return reply

    look = StepHooks(lambda: seen.append(_first_gradient(client) if gradients else torch.zeros(0)), hooks.before_step)
    before = {name: t.clone() for name, t in client.split.state_dict().items()} if fake is not None else {}
    try:
        shown = batch if fake is None else replace(batch, y=fake)
        with client.remote.watched(listen):
            values = learn(client, shown, update=fake is None, hooks=look)
    finally:
        hook.remove()
    if before:  # running statistics, and whatever a guard learns by itself
        client.split.load_state_dict(before)
    rows = answers[-1] if answers and len(answers[-1]) == len(batch) else None
    sent = SentBatch(batch.x, batch.y, batch.s, left[0]) if len(left[0]) == len(batch) else None
    return values, StepView(step, batch.y, rows, seen[0], fake is not None, sent)


def _first_gradient(client: ClientNetwork) -> Tensor:
    for parameter in client.split.head.parameters():
        if parameter.grad is not None:
            return parameter.grad.detach().flatten().clone()
    raise ValueError("detectors look at the gradients of the head's first layer: they need a head that trains")
