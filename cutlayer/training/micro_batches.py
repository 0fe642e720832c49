"""A batch in several pieces, all in flight at once: while one travels, another is computed.

Every piece is an ordinary step in a thread of its own, up to the optimizer. Only one of them computes at a time, and
they take turns in a fixed order, wherever one asks the server and would wait. So what is computed, in which order and
from which random numbers does not depend on how long anything takes.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import torch

from ..core.batch import Batch
from ..core.errors import NonFinite
from ..core.message import Handler, Message
from ..core.seeds import draw_from, drawn, seeded
from ..core.stepping import backward
from .step import NO_HOOKS, ClientNetwork, StepHooks, exchange_lift, figures, in_training, looked_at, noted, take_step

Post = Callable[[Message], Callable[[], Message]]  # sends, and returns what waits for the answer


def at_once(send: Handler) -> Post:
    """In one process there is nothing to wait for."""

    def post(message: Message) -> Callable[[], Message]:
        answer = send(message)
        return lambda: answer

    return post


class Unheard:
    """Questions that have left and whose answers were not read. They come in the order of the questions."""

    def __init__(self, post: Post):
        self._post, self._answers = post, deque[Callable[[], Message]]()

    def ask(self, message: Message, meanwhile: Callable[[], None]) -> Message:
        self._answers.append(self._post(message))
        meanwhile()
        return self._answers.popleft()()

    def hear_the_rest(self) -> None:
        """Where a turn is given up and the conversation goes on: no answer is left to be taken for another."""
        while self._answers:
            with suppress(NonFinite):
                self._answers.popleft()()


class _Aborted(Exception):
    """Another piece failed."""


class Ring:
    """Hands the right to compute from one to the next, always in the same order."""

    def __init__(self, count: int, device: torch.device):
        self._device = device
        self._gates = [threading.Semaphore(0) for _ in range(count)]
        self._left = list(range(count))
        self._current = 0
        self._error: BaseException | None = None

    def run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """All jobs to their end, in turns. The first error of any of them is raised."""
        found: list[Any] = [None] * len(jobs)

        def work(number: int) -> None:
            self._gates[number].acquire()
            try:
                if self._error is None:
                    # A backward pass that stands still would stop those of the others: on a GPU all of them are
                    # made by one thread of autograd's, unless each is made by whoever asked for it.
                    with torch.autograd.set_multithreading_enabled(False):
                        found[number] = jobs[number]()
            except _Aborted:
                pass
            except BaseException as error:
                self._error = self._error or error
            finally:
                self._pass_on(leave=True)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(jobs))]
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            for thread in threads:
                thread.start()
            self._gates[0].release()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return found

    def switch(self) -> None:
        """Let the others compute; returns when it is this one's turn again, with its random numbers."""
        me, state = self._current, drawn(self._device)
        self._pass_on()
        self._gates[me].acquire()
        if self._error is not None:
            raise _Aborted
        draw_from(state, self._device)

    def _pass_on(self, leave: bool = False) -> None:
        place = self._left.index(self._current)
        following = self._left[(place + 1) % len(self._left)]
        if leave:
            self._left.remove(self._current)
        if self._left:
            self._current = following
            self._gates[following].release()


def learn_in_micro_batches(
    client: ClientNetwork, pieces: Sequence[Batch], first: int, post: Post, hooks: StepHooks = NO_HOOKS
) -> dict[str, float]:
    """One step of a batch in pieces, numbered from `first` on. Its gradient is that of the whole batch."""
    ring, total, unheard = Ring(len(pieces), pieces[0].x.device), sum(map(len, pieces)), Unheard(post)

    def ask(message: Message, _: Handler) -> Message:
        return unheard.ask(message, ring.switch)

    def job(batch: Batch) -> dict[str, float]:
        with seeded(batch.seed, batch.x.device):
            terms = client.split.terms(batch, client.remote)
            values = looked_at(client, terms)
            backward(reduce(torch.add, terms.values()) * (len(batch) / total))
        return values

    in_training(client)
    exchange_lift(client)
    client.remote.continue_at(first)
    try:
        with client.remote.watched(ask):
            found = ring.run([lambda batch=batch: job(batch) for batch in pieces])  # type: ignore[misc]
    except NonFinite:
        unheard.hear_the_rest()
        raise
    with seeded(pieces[0].seed, pieces[0].x.device):
        take_step(client, hooks)
    client.steps += 1
    values: dict[str, float] = {}
    for batch, terms in zip(pieces, found, strict=True):
        for name, value in terms.items():
            values[name] = values.get(name, 0.0) + value * (len(batch) / total)
    noted(client, values)
    return values | figures(client)
