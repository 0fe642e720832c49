"""How far a run has come and how it went: plain facts, which a snapshot carries on."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..core.lost_numbers import finite
from ..core.state import State
from .awaited import Awaited, is_far
from .step import lost_numbers


@dataclass(frozen=True)
class StepEvent:
    """Where a run stands after a step, for whoever shows it."""

    epoch: int
    step: int
    steps: int
    terms: Mapping[str, float]


@dataclass
class Best:
    """The best epoch so far by validation accuracy; `tensors` only where a plan may go back to it."""

    accuracy: float = -1.0
    epoch: int = 0
    tensors: State = field(default_factory=dict)


class Progress:
    """Epoch, round and step of a run, its history and its best epoch."""

    def __init__(self, clients: int):
        self.epoch = self.round = self.step = 0  # finished ones; `round` counts within the epoch
        self.taken = [0] * clients  # steps of each client
        self.sums: dict[str, tuple[float, int]] = {}  # of each term of the loss: total, and how many batches had it
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.best = Best()
        self.figures: dict[str, float] = {}  # beside the accuracy of the last validation, where the engine is told
        self.on_step: Callable[[int, Mapping[str, float]], None] = lambda step, terms: None
        # The largest value of each term of the loss so far, where the engine is told.
        self.peaks: Callable[[], Mapping[str, float]] = dict
        self._late = deque[tuple[int, Mapping[str, float]]]()  # steps whose figures nobody has looked at

    def learnt(self, terms: Mapping[str, float] | None = None) -> None:
        """A step was made; `terms` are those of its loss, where the engine is told.

        What a device is still computing is looked at once the next step was launched, whoever makes that one.
        """
        self.step += 1
        self._late.append((self.step, {} if terms is None else terms))  # asked whether it is empty, it would be read
        while len(self._late) > 1:
            self._look()
        if not isinstance(terms, Awaited):
            self.catch_up()

    def catch_up(self) -> None:
        """Look at all steps that were made: numbers that were lost in the last one come out here."""
        while self._late:
            self._look()

    def _look(self) -> None:
        step, terms = self._late.popleft()
        for name, value in terms.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, count + 1)
        self.on_step(step, terms)

    def row(self) -> dict[str, Any]:
        """The history's row of an epoch, as far as it has come."""
        self.catch_up()
        row: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 3)}
        return row | {name: total / count for name, (total, count) in self.sums.items()}

    def refuse_lost_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        far = dict[str, Tensor]()
        for name, tensor in tensors:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if is_far(tensor):
                far[name] = tensor
            elif not finite(tensor):
                self._refuse([name])
        if far:  # one wait and a few launches for all of them
            ends = torch.stack([end.double() for end in torch._foreach_norm(list(far.values()), inf)])
            self._refuse([name for name, sound in zip(far, ends.isfinite().tolist(), strict=True) if not sound])

    def _refuse(self, lost: list[str]) -> None:
        if lost:
            raise lost_numbers(f"the weights are non-finite after step {self.step} ({lost[0]})", self.peaks())

    def finished(self, epochs: int, patience: int) -> bool:
        return self.epoch >= epochs or bool(patience and self.epoch - self.best.epoch >= patience)

    def facts(self) -> dict[str, Any]:
        """All of it but the tensors of the best epoch, as JSON has it."""
        self.catch_up()
        return {
            "epoch": self.epoch,
            "turn": self.round,
            "step": self.step,
            "client_steps": list(self.taken),
            "sums": dict(self.sums),
            "seconds": self.seconds,
            "history": list(self.history),
            "best": [self.best.accuracy, self.best.epoch],
        }

    def restore(self, facts: Mapping[str, Any], best: State) -> None:
        """Go back to what `facts` once was; `best` are the tensors of the best epoch."""
        self._late.clear()
        self.epoch, self.round, self.step = facts["epoch"], facts["turn"], facts["step"]
        self.taken = list(facts["client_steps"])
        self.sums = {name: (total, count) for name, (total, count) in facts["sums"].items()}
        self.seconds, self.history = facts["seconds"], list(facts["history"])
        accuracy, epoch = facts["best"]
        self.best = Best(accuracy, epoch, best)
