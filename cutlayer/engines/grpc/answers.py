"""What a client may answer an order with. Others start from the weights it brings, so they are looked at first."""

from collections.abc import Mapping
from typing import Any

import torch

from ...core.batch import Task
from ...core.lost_numbers import finite
from ...core.message import Kind, Message
from ...core.state import State
from ...training.coordinator import Coordinator
from ...training.first_weights import FirstWeights, lengths, too_long
from ...training.orders import weights_in
from .session import Refused


class AnswerValidator:
    """An answer is held to its order, and its weights to those before, or to the plan where there are none yet."""

    def __init__(self, coordinator: Coordinator, task: Task):
        self._coordinator, self._first = coordinator, FirstWeights(coordinator.plan, task)

    def check(self, order: Message, answer: Message, client: int) -> None:
        """Refuse what is no answer to this order. Nothing has changed when it raises."""
        if answer.client != client:
            raise Refused("unknown client", f"{answer}: this connection is client {client}")
        whole = {Kind.TURN: ("samples", 1), Kind.WEIGHTS: ("samples", 1), Kind.EVALUATE: ("score", 2)}
        name, count = whole.get(order.kind, ("steps", 1))
        found = answer.tensors.get(name)
        if found is None or found.dtype != torch.int64 or tuple(found.shape) != (count,) or int(found.min()) < 0:
            raise Refused("shape", f"{answer} should carry {count} whole numbers as {name!r}")
        batches = int(order["turn"][2] - order["turn"][1]) if name == "samples" else 0
        if answer.step != order.step + batches:
            raise Refused("step", f"{answer} where step {order.step + batches} was expected")
        most = batches * 2 * self._coordinator.plan.batch_size  # as the validator allows
        if (name == "samples" and int(found[0]) > most) or (name == "score" and int(found[0]) > int(found[1])):
            raise Refused("range", f"{answer} with {name} {found.tolist()}, more than there can be")
        self._weights(order, answer, name, batches)

    def _weights(self, order: Message, answer: Message, name: str, batches: int) -> None:
        plan, weights = self._coordinator.plan, weights_in(answer)
        frozen = name == "samples" and bool(order["turn"][3])
        brings = order.kind is Kind.WEIGHTS and not frozen
        # Where no part of the client's trains, its guard alone may have something to bring, or nothing.
        fits = bool(weights) == brings or (brings and not plan.client_parts_train)
        if set(answer.tensors) != {name, *weights} or not fits:
            raise Refused("shape", f"{answer} carries {sorted(answer.tensors)[:4]}")
        # Where several share a round, an update with NaN is left out of it; weights to start from have no others.
        others = plan.rounds.merges and batches > 0
        if not others and any(t.is_floating_point() and not finite(t) for t in weights.values()):
            raise Refused("non-finite", f"{answer}: the weights hold NaN or infinity")
        if weights and not self._coordinator.shared and not others:
            self._first_ones(answer, weights)
        elif weights and not plan.rounds.merges:
            self._handed_on(answer, weights, self._coordinator.shared)

    def _first_ones(self, answer: Message, weights: State) -> None:
        with self._coordinator.lock:  # a network is drawn to compare them with
            why = self._first.why_not(answer.client, weights, sealed=self._coordinator.counts is not None)
        if why:
            raise Refused("shape", f"{answer}: {why}")

    @staticmethod
    def _handed_on(answer: Message, weights: State, before: State) -> None:
        """In a relay. What is merged is compared when it is: one that does not fit is left out of its round."""
        if _form(weights) != _form(before):
            raise Refused("shape", f"{answer}: other weights than the ones handed on")
        if why := too_long(weights, lengths(before)):
            raise Refused("range", f"{answer}: {why}")


def _form(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (tuple(t.shape), t.dtype) for name, t in state.items()}
