"""What the body answers to clients elsewhere: whatever comes is computed, and nothing that is not a number leaves."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from ...core.errors import NonFinite, ProtocolError
from ...core.lost_numbers import finite
from ...core.message import Kind, Message, Watcher, through
from ...training.coordinator import Coordinator
from ...training.fused_wave import FUSED, Fusion
from ...training.plan.schedule import Turn
from .barrier import RoundBarrier
from .session import Refused


class Replies:
    """The server's answers, one at a time, or in the order of a wave."""

    def __init__(self, coordinator: Coordinator, device: str = "cpu", at_server: Sequence[Watcher] = ()):
        plan = coordinator.plan
        if at_server and plan.rounds.fused:
            raise ValueError("watchers hear one message at a time, and a fused wave answers all at once: fused=False")
        self._coordinator, self._device, self._merges = coordinator, device, plan.rounds.merges
        self._handle = through([*at_server, *coordinator.watches], coordinator.server.handle)
        self.heard = bool(at_server or coordinator.watches)  # whether somebody listens, message by message
        # A client goes on while the body steps; not where the step may find its turn void, or somebody looks on.
        coordinator.server.answers_first = not self._merges and not self.heard
        self._barrier: RoundBarrier | None = None
        self.voided: set[int] = set()  # clients whose turn of this round counts for nothing

    def open_round(self) -> None:
        self.voided.clear()

    def open_wave(self, turns: Sequence[Turn]) -> RoundBarrier:
        """From here on the clients of these turns are answered in their order, or all at once."""
        fused = self._fused(Fusion(self._coordinator.server)) if self._coordinator.plan.rounds.fused else None
        frozen = [turn.client for turn in turns if turn.frozen]
        self._barrier = RoundBarrier([turn.client for turn in turns], self._alone, fused, frozen)
        return self._barrier

    def close_wave(self) -> None:
        self._barrier = None

    def to(self, message: Message) -> Message:
        """The body's answer. Numbers may be so large, or rows so few, that a message of the right form has none."""
        try:
            barrier = self._barrier  # one that only predicts may come just as a wave ends
            with _computed(message):
                reply = barrier.answer(message) if barrier is not None else self._alone(message)
                if self._merges:
                    _lost(message, reply)
        except NonFinite as error:
            if not self._merges or message.kind not in FUSED:
                raise Refused("non-finite", str(error)) from error
            return self._void(message)
        _refuse_non_finite(message, reply.tensors)
        return reply

    def catch_up(self, message: Message) -> None:
        """What an answer need not wait for: the body's step, and whether it is still made of numbers."""
        if message.kind is not Kind.FORWARD:
            with self._coordinator.lock, _computed(message):
                self._coordinator.server.catch_up()
        self._refuse_lost_weights(message)

    def _refuse_lost_weights(self, message: Message) -> None:
        # Copies and gradients that are still to be merged are looked at when they are.
        server = self._coordinator.server
        if message.kind is Kind.BACKWARD and server.optimizer is not None and not self._merges:
            _refuse_non_finite(message, server.body.state_dict())

    def forget(self, client: int) -> None:
        """Drop what is held for a client that went away."""
        with self._coordinator.lock:
            self._coordinator.server.forget(client)

    def _void(self, message: Message) -> Message:
        """To a client whose turn cannot be computed: nothing. It gives its turn up, and the round goes on."""
        with self._coordinator.lock:
            self._coordinator.server.forget(message.client)
            self.voided.add(message.client)
        return message.reply()

    def _alone(self, message: Message) -> Message:
        with self._coordinator.lock:
            return self._handle(message.to(self._device))

    def _fused(self, fusion: Fusion) -> Callable[[Sequence[Message]], list[Message]]:
        def together(messages: Sequence[Message]) -> list[Message]:
            with self._coordinator.lock:
                return fusion([message.to(self._device) for message in messages])

        return together


@contextmanager
def _computed(message: Message) -> Iterator[None]:
    """What fails while a message is computed is its sender's fault."""
    try:
        yield
    except NonFinite:
        raise
    except (ProtocolError, RuntimeError, ValueError) as error:
        raise Refused("failed", f"{message} cannot be computed: {error}") from error


def _lost(message: Message, reply: Message) -> None:
    if message.kind in FUSED and not all(map(finite, reply.tensors.values())):
        raise NonFinite(f"{message} leads to NaN or infinity")


def _refuse_non_finite(message: Message, tensors: Mapping[str, torch.Tensor]) -> None:
    sums = [tensor.sum() for tensor in tensors.values()]
    if not all(map(math.isfinite, sums)):
        raise Refused("non-finite", f"{message} leads to NaN or infinity: its numbers, or a rate, are too large")
