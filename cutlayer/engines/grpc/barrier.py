"""The clients of a wave at the server: they come as they like, and are answered in their order or all at once.

So what is computed does not depend on who is fastest.
"""

import threading
from collections.abc import Callable, Collection, Sequence

from ...core.message import Handler, Kind, Message
from ...training.fused_wave import FUSED


class Abandoned(Exception):
    """Another client's part in the wave has failed, and the wave with it."""


class RoundBarrier:
    """Answers each kind of message once for every client, in the order of `clients`; `fusion` answers all at once."""

    def __init__(
        self,
        clients: Sequence[int],
        handle: Handler,
        fusion: Callable[[Sequence[Message]], list[Message]] | None = None,
        frozen: Collection[int] = (),
    ):
        self._clients, self._handle, self._fusion = list(clients), handle, fusion
        self._done: dict[int, set[int]] = {kind: set() for kind in FUSED}  # who has been answered, or has left
        self._frozen = frozenset(frozen)
        self._posted: dict[int, Message] = {}
        self._answers: dict[int, Message | Exception] = {}
        self._broken = False
        self._bell = threading.Condition()

    def answer(self, message: Message) -> Message:
        """Blocks until it is this client's turn."""
        if message.kind not in FUSED:
            return self._handle(message)
        with self._bell:
            if self._fusion is not None:
                return self._together(message)
            self._wait(lambda: not self._before(message))
            try:
                return self._handle(message)
            finally:
                self._done[message.kind].add(message.client)
                self._bell.notify_all()

    def leave(self, client: int) -> None:
        """This client sends nothing more in this wave."""
        with self._bell:
            for done in self._done.values():
                done.add(client)
            self._answer_all()
            self._bell.notify_all()

    def abandon(self) -> None:
        """Nobody waits any longer."""
        with self._bell:
            self._broken = True
            self._bell.notify_all()

    def _before(self, message: Message) -> list[int]:
        # The body learns from a frozen client's LOSS at once, and so not before it has from those ahead.
        both = message.kind is Kind.LOSS and message.client in self._frozen
        kinds = (Kind.LOSS, Kind.BACKWARD) if both else (message.kind,)
        ahead = self._clients[: self._clients.index(message.client)]
        return [client for client in ahead if any(client not in self._done[kind] for kind in kinds)]

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._bell.wait_for(lambda: self._broken or ready())
        if self._broken:
            raise Abandoned

    def _together(self, message: Message) -> Message:
        self._posted[message.client] = message
        self._done[message.kind].add(message.client)
        self._answer_all()
        self._wait(lambda: message.client in self._answers)
        answer = self._answers.pop(message.client)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer_all(self) -> None:
        """Once everybody who is still there has posted."""
        if self._fusion is None or not self._posted:
            return
        kind = next(iter(self._posted.values())).kind
        if not set(self._clients) <= self._done[kind]:
            return
        asked = [self._posted.pop(client) for client in self._clients if client in self._posted]
        try:
            answers: Sequence[Message | Exception] = self._fusion(asked)
        except (RuntimeError, ValueError, ArithmeticError) as error:
            answers = [error] * len(asked)
        self._answers |= {one.client: answer for one, answer in zip(asked, answers, strict=True)}
        self._bell.notify_all()
