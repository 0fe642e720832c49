"""Orders in one process are function calls: one client after the other, or all of a fused wave side by side."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.message import Handler, Message
from ...core.state import State
from ...data.base import Parts, Samples
from ...training.batches import on
from ...training.coordinator import Coordinator
from ...training.evaluation import figures, mean_loss
from ...training.fused_wave import FUSED
from ...training.loop import BEST
from ...training.micro_batches import Ring
from ...training.plan.plan import Plan
from ...training.plan.schedule import Turn
from .pool import ClientPool

PASSES = 32  # over the held-out data in one evaluation, at most: more clients than that share them


class FusedDoor:
    """The server's door where it answers all clients of a wave at once: each waits until all have posted."""

    def __init__(
        self, handle: Handler, fusion: Callable[[Sequence[Message]], Sequence[Message]], device: torch.device
    ):
        """`handle` answers what is no part of a wave, `fusion` one message of every client."""
        self._handle, self._fusion, self._device = handle, fusion, device
        self._ring, self._order = Ring(0, device), list[int]()
        self._posted: dict[int, Message] = {}
        self._answers: dict[int, Message] = {}

    def __call__(self, message: Message) -> Message:
        if message.kind not in FUSED:
            return self._handle(message)
        self._posted[message.client] = message
        self._ring.switch()  # comes back when every other client has posted its own
        if message.client not in self._answers:  # the first to come back
            asked = [self._posted.pop(client) for client in self._order if client in self._posted]
            found = zip(asked, self._fusion(asked), strict=True)
            self._answers |= {one.client: answer for one, answer in found}
        return self._answers.pop(message.client)

    def side_by_side(self, turns: Sequence[Any], one: Callable[[Any], Message | None]) -> list[Any]:
        """All turns of a wave (or the orders for them), each up to where it needs the server, in turn."""
        self._ring, self._order = Ring(len(turns), self._device), [turn.client for turn in turns]
        self._posted, self._answers = {}, {}
        return self._ring.run([lambda turn=turn: one(turn) for turn in turns])  # type: ignore[misc]


class LocalCarrier:
    """Server and clients in one process; everything else is as between machines."""

    def __init__(self, coordinator: Coordinator, clients: ClientPool, parts: Parts, fused: FusedDoor | None):
        self.coordinator, self.clients, self.parts, self._fused = coordinator, clients, parts, fused
        self._there: dict[int, tuple[Samples, Samples]] = {}  # what is held out, and the same on the clients' device

    def ask_all(self, turns: Sequence[Turn]) -> Iterable[Message | None]:
        if self._fused is not None:
            return self._fused.side_by_side(turns, self._one)
        return map(self._one, turns)

    def _one(self, turn: Turn) -> Message | None:
        return self.coordinator.received(turn, self.ask(turn.client, self.coordinator.order(turn)))

    def ask(self, client: int, order: Message) -> Message:
        """Have a client follow an order, and return its answer."""
        done = self.clients.awake(client, self.coordinator.keeps_networks, self._fused is not None).handle(order)
        self.coordinator.server.settled(client)
        return done

    def evaluate(self, purpose: str) -> list[float]:
        self.coordinator.progress.refuse_lost_weights(self.clients.own_tensors(self.coordinator.keeps_networks))
        found = self.accuracies(purpose, self.parts.val if purpose == "validate" else self.parts.test)
        told = figures(client.scored for client in self.clients) | mean_loss(client.scored for client in self.clients)
        self.coordinator.progress.figures = {name: told[name] for name in told if name in ("perplexity", "loss")}
        return found

    def accuracies(self, purpose: str, samples: Samples) -> list[float]:
        """On `samples`, of every distinct client network."""
        coordinator, found = self.coordinator, list[float]()
        samples = self._on_device(samples)
        for client in self.clients[:1] if coordinator.alike else self.clients:
            part = part_of(samples, client.number, coordinator.plan, coordinator.alike)
            self.clients.awake(client.number, self.coordinator.keeps_networks)
            weights = {} if client.number in coordinator.heads_of_their_own() else coordinator.shown(client.number)
            right, count = client.evaluate_with(weights, purpose, coordinator.progress.epoch, part)
            found += [right / count] if count else []
        return found

    def _on_device(self, samples: Samples) -> Samples:
        """Every epoch asks for the same ones: those of the parts are brought over once."""
        if samples is not self.parts.val and samples is not self.parts.test:
            return samples
        if id(samples) not in self._there:
            self._there[id(samples)] = samples, on(samples, self.clients[0].device)
        return self._there[id(samples)][1]

    def keep(self, number: int) -> State:
        return self.clients.tensors(self.coordinator.keeps_networks)

    def rewind(self, number: int, kept: Mapping[str, Tensor]) -> None:
        self.clients.load(kept, None if self.coordinator.keeps_networks else self.coordinator.shown)
        for client, steps in zip(self.clients, self.coordinator.progress.taken, strict=True):
            client.continue_at(steps)
            client.at_best = number == BEST


def part_of(samples: Samples, number: int, plan: Plan, alike: bool) -> Samples:
    """What a client is evaluated on. Many share the samples evenly, so that they cost no more than a few; where all
    are `alike`, one speaks for all."""
    have = len(samples)
    if alike or plan.clients <= PASSES or not have:
        return samples
    size = min(have, max(plan.least_batch, have * PASSES // plan.clients))
    return samples[(number * size + torch.arange(size)) % have]
