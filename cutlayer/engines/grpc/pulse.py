"""Whether a run moves: how long steps take, and how long ago the last sign of one was."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

KEPT = 101  # steps whose time is remembered
TIMES = 20.0  # so many times as long as most steps take, without a sign, is a stall,
LEAST = 30.0  # but no fewer seconds: snapshots and merges are written between steps


class Pulse:
    """Steps, as they are made."""

    def __init__(
        self, times: float = TIMES, least: float = LEAST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not times > 1:
            raise ValueError(f"--stalled-after is how many times as long as a step, above 1; got {times:g}")
        self.times, self.least, self._clock = times, least, clock
        self._taken = deque[float](maxlen=KEPT)
        self._last = clock()
        self._counting = False  # the first step of a run waits for clients: that is no step's time

    def step(self) -> None:
        now = self._clock()
        if self._counting:
            self._taken.append(now - self._last)
        self._last, self._counting = now, True

    @property
    def usual(self) -> float | None:
        """Seconds of most steps."""
        return median(self._taken) if self._taken else None

    def since(self, sign: float = 0.0) -> float:
        """Seconds since the last step, or since another sign of life (evaluations are no steps)."""
        return max(0.0, self._clock() - max(self._last, sign))

    def stalled(self, sign: float = 0.0) -> bool:
        """Whether nothing has come for far longer than a step takes."""
        usual = self.usual
        return usual is not None and self.since(sign) > max(self.least, self.times * usual)
