"""What a server can tell from what its clients send: whether one of them is unlike the others."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ...core.message import Handler, Message
from ...core.plan_view import PlanView
from ...core.spec import Spec


class ServerContext(NamedTuple):
    """What a detector at the server may know of the run."""

    clients: int
    passing: int  # clients in a pass, where not all of them are drawn
    epochs: int
    passes: int  # of the whole plan
    answers: bool  # what the body makes of a batch goes back to the client (no labels at the server)
    seed: int


@dataclass(frozen=True, repr=False)
class ServerDetector(Spec):
    """A frozen spec; `start` makes what watches all clients of one run. Server only: no client is told."""

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where a server of this plan cannot watch so; before anything is built."""
        if not plan.protocol.crosses or plan.rounds.fused:
            raise ValueError("the server's detectors look at single batches that cross: a cut, and no fused waves")

    def start(self, context: ServerContext) -> "ServerWatch":
        raise NotImplementedError


class ServerWatch:
    """A watcher before the server. It changes nothing: it scores clients, and says who is unlike the others."""

    def __call__(self, message: Message, handle: Handler) -> Message:
        raise NotImplementedError

    def turned(self, clients: Sequence[int]) -> None:
        """These clients have had their turns."""

    def epoch_over(self) -> None:
        """Everybody has shown all its batches, or as many as the plan lets it."""

    def flagged(self) -> list[list[int]]:
        """The clients that each round so far raised an alarm about."""
        raise NotImplementedError

    def report(self, malicious: Collection[int] | None = None) -> dict[str, Any]:
        """What was seen; how right it was, where an experiment knows who is `malicious`."""
        raise NotImplementedError

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, plain facts) to go on from."""
        raise NotImplementedError

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        raise NotImplementedError
