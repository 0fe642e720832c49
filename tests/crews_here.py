"""Crews in this process, for tests of the engine on Ray that need no Ray."""

import pickle
from itertools import count

from cutlayer.engines.ray.crew import Crew


class Ticket:
    def __init__(self, said):
        self.said = said


class CrewsHere:
    """In this process. Of calls whose number is in `lost` nobody hears, and the crew is a new one after it."""

    def __init__(self, setup, crews=2, lost=()):
        self.setup, self.crews, self.lost, self.calls = setup, [Crew(setup) for _ in range(crews)], set(lost), count()

    def __len__(self):
        return len(self.crews)

    def begin(self, crew, orders):
        return self._call(crew, "begin", orders)

    def go_on(self, crew, replies):
        return self._call(crew, "go_on", replies)

    def _call(self, crew, what, given):
        said = getattr(self.crews[crew], what)(pickle.loads(pickle.dumps(given)))
        if next(self.calls) in self.lost:
            self.crews[crew] = Crew(self.setup)
            return Ticket(None)
        return Ticket(pickle.loads(pickle.dumps(said)))

    def first(self, tickets):
        return tickets[-1]  # the last begun: nothing hangs on who is first

    def said(self, ticket):
        return ticket.said

    def replaced(self, crew):
        """At once: see `_call`."""
