"""A plan from its first round to its last, whoever carries the messages."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Protocol

from torch import Tensor

from ..core.message import Message
from ..core.state import State
from ..rules.base import SEAL
from .coordinator import Coordinator
from .plan.optimizers import set_rate
from .plan.schedule import Turn
from .progress import Best, StepEvent
from .step import lost_numbers

BEST = -1  # the number under which the best epoch is kept


class Carrier(Protocol):
    """How orders reach the clients: all that an engine is."""

    def ask_all(self, turns: Sequence[Turn]) -> Iterable[Message | None]:
        """What the clients of a round bring, in the order of their turns; None where nothing of it counts.

        For every turn: send `coordinator.order(turn)`, and pass the answer through `coordinator.received`.
        """

    def evaluate(self, purpose: str) -> list[float]:
        """Accuracy of every distinct client network on data held out for `purpose`; empty without such data."""

    def keep(self, number: int) -> State:
        """All clients keep what they have under this number; returns what of it the server is to keep for them."""

    def rewind(self, number: int, kept: Mapping[str, Tensor]) -> None:
        """All clients go back to what they kept under this number; `kept` is what the server kept for them."""


def train(
    coordinator: Coordinator,
    carrier: Carrier,
    *,
    on_step: Callable[[StepEvent], None] = lambda event: None,
    on_round: Callable[[], None] = lambda: None,
    on_epoch: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run to the end, or until `stop` says so between two rounds. True: the plan is finished."""
    plan, progress, server = coordinator.plan, coordinator.progress, coordinator.server
    steps = coordinator.timetable.steps
    progress.on_step = lambda step, terms: on_step(StepEvent(progress.epoch, step, steps, terms))
    while not progress.finished(plan.epochs, plan.patience):
        set_rate(server.optimizer, plan.server_optimizer.lr * plan.rate_factor(progress.epoch))
        rounds = coordinator.timetable.rounds(progress.epoch)
        while progress.round < len(rounds):
            if stop():
                progress.catch_up()
                return False
            began = time.perf_counter()
            take_round(coordinator, carrier, rounds[progress.round])
            progress.round += 1
            progress.seconds += time.perf_counter() - began
            on_round()
        _close_epoch(coordinator, carrier)
        on_epoch()
    return True


def take_round(coordinator: Coordinator, carrier: Carrier, turns: Sequence[Turn]) -> None:
    """One round, and which weights the next one starts from."""
    if coordinator.lacks_weights:
        _first_weights(coordinator, carrier, turns)
    coordinator.open_round(turns)
    for turn, done in zip(turns, carrier.ask_all(turns), strict=True):
        if done is not None:
            coordinator.accept(turn, done)
    coordinator.close_round()


def _first_weights(coordinator: Coordinator, carrier: Carrier, turns: Sequence[Turn]) -> None:
    """All clients start from the weights of the first one that is there. It makes no step for it."""
    for turn in turns:
        for brought in carrier.ask_all([Turn(turn.client, 0, 0)]):
            if brought is not None:
                coordinator.start_from(brought)
                _show_start(coordinator, carrier, {turn.client for turn in turns})
                return


def _show_start(coordinator: Coordinator, carrier: Carrier, there: set[int]) -> None:
    """Who is not drawn for the first round sees the start, too, where one has sealed it: later weights are merged."""
    if any(name.startswith(SEAL) for name in coordinator.shared):
        for client in sorted(set(range(coordinator.plan.clients)) - there):
            list(carrier.ask_all([Turn(client, 0, 0, frozen=True)]))


def _close_epoch(coordinator: Coordinator, carrier: Carrier) -> None:
    plan, progress = coordinator.plan, coordinator.progress
    progress.round, progress.epoch = 0, progress.epoch + 1
    for watch in coordinator.watches:
        watch.epoch_over()
    row, progress.sums = progress.row(), {}
    progress.refuse_lost_weights(coordinator.own_tensors())
    if accuracies := carrier.evaluate("validate"):
        row["val"] = mean(accuracies)
        row |= {f"val_{name}": value for name, value in progress.figures.items()}
        if row["val"] > progress.best.accuracy:
            kept = carrier.keep(BEST) if plan.patience else {}
            tensors = coordinator.tensors() | kept if plan.patience else {}
            progress.best = Best(row["val"], progress.epoch, tensors)
    if lost := coordinator.rejected_in(progress.epoch):
        row["rejected"] = len(lost)
        if len(lost) >= sum(len(one) for one in coordinator.timetable.rounds(progress.epoch - 1)):
            raise lost_numbers(
                f"every update of epoch {progress.epoch} was left out; the last: {lost[-1]['why']}", {}
            )
    progress.history.append(row)


def back_to_best(coordinator: Coordinator, carrier: Carrier) -> None:
    """Server and clients as they were after the best epoch, where one was kept."""
    if coordinator.has_best:
        kept = coordinator.progress.best.tensors
        coordinator.load(kept)
        carrier.rewind(BEST, kept)
