"""How far a table is, and about how long it still takes: cells are timed by their kind, as they are made."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import mean

from .rows import Estimate, Event, Finished

LIKE = {"baseline": "training", "poisoned training": "training"}  # timed as these until one was made
ENOUGH_SECONDS, ENOUGH_SHARE = 1.0, 0.1  # of a first cell, before it tells how long one takes: either will do


class Cells:
    """Progress over all cells of a table. `to_make`: how many there are of each kind (trainings, attacks)."""

    def __init__(self, on_event: Callable[[Event], None], to_make: Mapping[str, int]):
        self.on_event, self._left = on_event, dict(to_make)
        self.count, self.done = sum(to_make.values()), 0
        self._took: defaultdict[str, list[float]] = defaultdict(list)
        self._spent, self._estimated = 0.0, False
        self._now: list[str] = []  # kinds that are being made, one inside the other
        self._first: tuple[float, float] | None = None  # when the first of them said how far it is, and how far

    def __call__(self, what: str, share: float = 0.0) -> None:
        self.on_event(Event(what, min(1.0, (self.done + share) / self.count), estimate=self._first_estimate(share)))

    @contextmanager
    def making(self, kind: str, what: str) -> Iterator[None]:
        """A cell that is made now. What is made inside it (the training that an attack needs) counts for itself."""
        began, before = time.perf_counter(), self._spent
        self._now.append(kind)
        try:
            yield
        finally:
            self._now.pop()
        own = time.perf_counter() - began - (self._spent - before)
        self._spent += own
        self._took[kind].append(own)
        self.there(kind)
        self.on_event(Event(what, self.done / self.count, Finished(self.done, self.count, own, self.left())))

    def there(self, kind: str) -> None:
        """One that was made before."""
        self.done += 1
        self._left[kind] -= 1

    def left(self) -> float | None:
        """Seconds for what is left, if each takes as long as others of its kind did; None: one kind was not timed."""
        kinds = [kind for kind, left in self._left.items() if left > 0]
        wanted = {kind: self._took[kind] or self._took[LIKE.get(kind, kind)] for kind in kinds}
        if not all(wanted.values()):
            return None
        return sum(self._left[kind] * mean(took) for kind, took in wanted.items())

    def _first_estimate(self, share: float) -> Estimate | None:
        """Once, from the first steps of the first cell that tells how far it is. It may go on from its middle."""
        if self._estimated or not self._now or share <= 0:
            return None
        if self._first is None:
            self._first = (time.perf_counter(), share)
            return None
        seconds, made = time.perf_counter() - self._first[0], share - self._first[1]
        if made <= 0 or (seconds < ENOUGH_SECONDS and made < ENOUGH_SHARE):
            return None
        self._estimated = True
        return Estimate(self._now[-1], seconds / made, dict(self._left))
