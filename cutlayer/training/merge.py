"""What the clients of a round bring, on its way to one state.

Up to 32 updates are kept until all are there. Of more, rules that take a mean fold each in when its client's turn is
over, so that a thousand need no more memory. Rules that compare clients with each other hold all of them at once.
"""

from collections.abc import Mapping

from torch import Tensor

from ..core.state import State
from ..rules import Rule, Update

HELD = 32  # updates of a round in memory at once, where the rule can do with fewer than all


def held_at_once(rule: Rule, turns: int) -> int:
    """How many updates of a round with so many turns lie in memory at the same time, at most."""
    folds = turns > HELD and rule.running({}) is not None
    return 1 if folds else turns


class Gathering:
    """The updates of one round, of heads or of bodies."""

    def __init__(self, rule: Rule, current: Mapping[str, Tensor], memory: Mapping[str, Tensor], turns: int = 0):
        """`current`: what the round begins with; `memory`: what the rule remembers of earlier ones."""
        self.rule, self.current, self.memory = rule, dict(current), memory
        self.kept: dict[int, Update] = {}  # by client; none where they are folded in
        self.count = 0
        self._running = rule.running({**current, **memory}) if turns > HELD else None

    def add(self, client: int, update: Update) -> None:
        self.count += 1
        if self._running is not None:
            self._running.add(update)
        else:
            self.kept[client] = update

    def merged(self, clients: int) -> State:
        """The next state with the rule's memory, of a plan with so many clients; enough updates must be there."""
        if self._running is not None:
            return self._running.merged()
        return self.rule.among(self.count, clients)({**self.current, **self.memory}, list(self.kept.values()))

    def beside(self, other: "Gathering") -> "Gathering":
        """Heads and bodies of the same clients as one: a robust rule looks at a client as a whole."""
        whole = Gathering(self.rule, {**self.current, **other.current}, self.memory)
        for client, head in self.kept.items():
            whole.add(client, Update({**head.state, **other.kept[client].state}, head.samples))
        return whole
