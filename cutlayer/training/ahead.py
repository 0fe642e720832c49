"""A step that begins before the one before it has ended: on a slow link the client waits for one answer, not for two.

While a gradient is on its way up and back, the client computes head and guard of its next batch and sends what comes
of them, with weights that lack the step that is still under way. What comes after an answer has the newest weights,
and the server answers in the order of the batches, as always:

    client   head 0 | tail 0 | head 1 | step 0 | tail 1 | head 2 | step 1 | tail 2 | ...
    server          forward 0    backward 0, step | forward 1    backward 1, step | ...

Every step is an ordinary one in a thread of its own, which stands still where it would wait. Only one of them
computes at a time, in an order that hangs on no delay.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import NonFinite
from ..core.message import Handler, Message
from ..core.seeds import draw_from, drawn
from .awaited import Figures
from .micro_batches import Post, Unheard
from .step import NO_HOOKS, ClientNetwork, StepHooks, learn


def learn_ahead(
    client: ClientNetwork, batches: Iterator[Batch], post: Post, hooks: StepHooks = NO_HOOKS
) -> Generator[Figures, None, None]:
    """The steps of a turn: of each, once it is over, the loss term by term. Whoever gives up closes it."""
    flight = _Flight(client, post, hooks)
    with client.remote.watched(flight.ask):
        try:
            ahead = flight.begun(next(batches, None))
            while ahead is not None:
                now, ahead = ahead, None
                flight.go_on(now)  # the answer is there, and the gradient has left
                ahead = flight.begun(next(batches, None))
                flight.go_on(now)  # the gradient is back: the step is over
                yield now.found
        except NonFinite:  # the turn is given up, and the conversation goes on
            flight.unheard.hear_the_rest()
            raise
        finally:
            flight.give_up()


class _Flight:
    """The steps of a turn that are under way, and the answers that have not been heard."""

    def __init__(self, client: ClientNetwork, post: Post, hooks: StepHooks):
        self._client, self._hooks, self.unheard = client, hooks, Unheard(post)
        self._steps: deque[InStretches] = deque(maxlen=2)
        self._computes: InStretches | None = None  # the one of them that does

    def begun(self, batch: Batch | None) -> "InStretches | None":
        """A step of which what leaves the client has left. If it failed, it says so when it is its turn."""
        if batch is None:
            return None
        client, hooks = self._client, self._hooks

        def work() -> Figures:
            with kept_as_they_are(client.split):
                return learn(client, batch, hooks=hooks)

        step = self._computes = InStretches(work, batch.x.device)
        self._steps.append(step)
        step.work_on()
        return step

    def go_on(self, step: "InStretches") -> None:
        self._computes = step
        step.go_on()

    def ask(self, message: Message, _: Handler) -> Message:
        """A watcher: what is asked leaves, and its step stands still until it is told to go on."""
        guard, step = self._client.split.guard, self._computes
        assert step is not None

        def stand_still() -> None:  # on a GPU gradients come in a thread of autograd's
            notes = guard.notes  # another batch goes through it meanwhile
            step.stand_still()
            guard.notes = notes

        return self.unheard.ask(message, stand_still)

    def give_up(self) -> None:
        for step in self._steps:
            self._computes = step
            step.give_up()


def kept_as_they_are(module: nn.Module) -> torch.autograd.graph.saved_tensors_hooks:
    """What autograd keeps of these weights for the way back it keeps as they are now: they change until then."""
    own = {tensor.untyped_storage().data_ptr() for tensor in chain(module.parameters(), module.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in own else tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


class _GivenUp(Exception):
    """Nobody waits for this work any longer."""


class InStretches:
    """Work in a thread of its own, of which `go_on` does as much as there is until it stands still or is over.

    Each has its own random numbers, and leaves those of whoever calls as they were.
    """

    def __init__(self, work: Callable[[], Any], device: torch.device):
        self.found: Any = None
        self._work, self._device = work, device
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._begun = self._over = self._given_up = False
        self._error: BaseException | None = None

    def go_on(self) -> None:
        """As far as there is; what went wrong in it, or before, is raised here."""
        self.work_on()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def work_on(self) -> None:
        """The same, and whatever goes wrong is kept."""
        if self._over:
            return
        state = drawn(self._device)
        if self._begun:
            self._go.release()
        else:
            self._begun = True
            threading.Thread(target=self._run, daemon=True).start()
        self._stands.acquire()
        draw_from(state, self._device)

    def stand_still(self) -> None:
        """In the work, in whichever thread: until it is told to go on."""
        state = drawn(self._device)
        self._stands.release()
        self._go.acquire()
        if self._given_up:
            raise _GivenUp
        draw_from(state, self._device)

    def give_up(self) -> None:
        """Leave off where it stands."""
        self._given_up = True
        self.work_on()

    def _run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as error:
            self._error = error
        self._over = True
        self._stands.release()
