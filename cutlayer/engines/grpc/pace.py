"""How long a turn may take in all: whoever answers each question just in time would else hold up everybody."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from ...core.message import Message
from .connection import PATIENCE, Absent
from .limits import Limits

KEPT = 99  # turns whose pace is remembered


class Pace:
    """How long clients have taken for a batch."""

    def __init__(self, limits: Limits):
        self._limits, self._taken = limits, deque[float](maxlen=KEPT)

    def clock(self, order: Message) -> "TurnClock":
        """For one order: some deadlines for whatever happens, and a multiple of what batches take here."""
        batches = int(order["turn"][2] - order["turn"][1]) if "turn" in order.tensors else 0
        usual = median(self._taken) if self._taken else self._limits.deadline
        each = min(self._limits.deadline, self._limits.pace * usual)
        return TurnClock(PATIENCE * self._limits.deadline + batches * each, batches, self._taken)


class TurnClock:
    """Runs while a client is waited for, and stands still while it waits itself."""

    def __init__(self, allowed: float, batches: int, taken: deque[float]):
        self._allowed, self._batches, self._taken, self._waited = allowed, batches, taken, 0.0
        self._forgiven = 0.0

    def left(self, name: str) -> float:
        """Seconds; Absent once there are none."""
        left = self._allowed - self._waited + self._forgiven
        if left <= 0:
            raise Absent(name)
        return left

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began

    def forgive(self) -> None:
        """It was not the client's fault."""
        self._forgiven = self._waited

    def done(self) -> None:
        if self._batches:
            self._taken.append((self._waited - self._forgiven) / self._batches)
