"""What a client can tell from its own steps: whether the gradients it gets are those of its task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.columns import Column
from ..core.guard import GuardModule
from ..core.plan_view import PlanView
from ..core.spec import Spec
from ..guards.base import Guard


class SentBatch(NamedTuple):
    """Samples of the client's own, and what left for each of them, a row a sample."""

    x: Tensor
    y: Tensor
    s: Mapping[str, Tensor]
    seen: Tensor

    @classmethod
    def together(cls, parts: "Sequence[SentBatch]") -> "SentBatch":
        s = {name: torch.cat([part.s[name] for part in parts]) for name in parts[0].s}
        x, y, seen = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "seen"))
        return cls(x, y, s, seen)

    def pick(self, which: Tensor) -> "SentBatch":
        which = which.to(self.x.device)
        return SentBatch(
            self.x[which], self.y[which], {name: t[which] for name, t in self.s.items()}, self.seen[which]
        )

    def newest(self, count: int) -> "SentBatch":
        return self.pick(torch.arange(max(0, len(self.x) - count), len(self.x)))


class StepView(NamedTuple):
    """One step as its client sees it. Of the server there is only the gradient that came back."""

    step: int
    y: Tensor  # the true labels
    dz: Tensor | None  # the gradient at what was sent, a row a sample; None where guards let samples share rows
    first: Tensor  # the gradient of the first layer's weights, flat
    fake: bool = False  # a probe: the labels that were used were wrong
    sent: SentBatch | None = None  # what left, behind the guard


class ClientAssets(NamedTuple):
    """What only a client has: its samples, its guard, and the guard's public map back to the cut."""

    samples: Callable[
        [int], SentBatch
    ]  # so many, or all there are; nothing was sent for them yet, so `seen` is empty
    guard: Callable[[Guard], GuardModule]  # another one in the place of its own, or why that cannot be
    undo: nn.Module | None
    columns: tuple[Column, ...] = ()  # of its table, where they have names


class ClientContext(NamedTuple):
    """What a detector may know of its client."""

    task: Task
    batch: int  # samples in a step
    seed: int
    honest: Callable[[int], Iterator[StepView]]  # so many steps against an honest server of the client's own making
    apart: bool = True  # every sample has one class, and a row of its own in what is sent
    own: ClientAssets | None = None


@dataclass(frozen=True, repr=False)
class Detector(Spec):
    """A frozen spec; `watch` makes what looks at one client's steps. Client only: no server is told."""

    reads_gradients: ClassVar[bool] = True  # of the head's first layer, which some guards do not train
    suspects: ClassVar[bool] = True  # tells an honest server from another; a meter only says how much leaks

    audited: ClassVar[tuple[str, ...]] = ()  # of its report (Watch.report), what the rows of an audit show

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where no client of this plan can be watched so; before anything is built."""
        if plan.micro_batches > 1 or not plan.protocol.crosses or "head" in plan.frozen_parts:
            raise ValueError("detectors look at whole batches that cross, and at a head that trains: micro_batches=1")

    def refuse_unfit(self, context: ClientContext) -> None:
        """A ValueError where this client cannot be watched so, with what would work; before the first step."""

    def on_trial(self) -> Self:
        """The same, but nothing of the training changes by it: for audits, which compare guards as they are."""
        return self

    def watch(self, context: ClientContext) -> "Watch":
        raise NotImplementedError


class Watch:
    """Looks at every step, keeps a score, and says why to stop; the client stops before it sends anything more."""

    def __init__(self) -> None:
        self.score: float | None = None
        self.alarm = ""
        self.guard: GuardModule | None = None  # to be used from the next step on, in the place of the client's

    @property
    def figures(self) -> dict[str, float]:
        """What else the history should show of it."""
        return {}

    def probe(self, step: int, y: Tensor) -> Tensor | None:
        """Wrong labels to use in this step instead, of which the client then learns nothing; None: an honest step."""
        return None

    def look(self, look: StepView) -> None:
        """A step is over."""
        raise NotImplementedError

    def finish(self) -> None:
        """The last step was that; nothing more will be sent."""

    def report(self) -> dict[str, Any]:
        """What else the result should say of it."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers of the steps so far: a client that goes on from a snapshot goes on watching."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to what `tensors` once was."""
