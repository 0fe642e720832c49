"""How far merged weights may have moved since a client last had them: a multiple of how far it has moved them itself.

A merge cannot be sealed, for the server computes it. But an honest one lies among what the clients brought, so that
it moves about as far as one of them does in as many steps; a head that shows its inputs lies far from all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.errors import OffPlan
from ..core.message import Kind, Message
from ..core.state import State
from ..rules.base import NET, STAT
from .orders import numbers, weights_in
from .plan.plan import Plan
from .timetable import Timetable

LEAST = 0.05  # of a tensor's length it may move in any case: who has hardly learnt has hardly moved
UNKNOWN = 0.5  # of its length, while a client has moved nothing yet
LAST = "last."  # how the names begin of what a client was last given, in a snapshot


class Moves:
    """What one client was last given, and the farthest it has gone from there in a step."""

    def __init__(self, plan: Plan, client: int, batches: Sequence[int]):
        """`batches`: how many each client has in an epoch."""
        self._plan, self._client, self._timetable = plan, client, Timetable(plan, batches)
        self.last: State = {}
        self._at = 0  # steps of whoever made the most of them, when it was given
        self._farthest: dict[str, float] = {}  # in a step, by group of tensors

    def check(self, order: Message) -> None:
        """Refuse weights that have moved too far since the last ones."""
        weights, limit = weights_in(order), self._plan.largest_move
        steps = max(1, self._place(order) - self._at)
        for group, names in groups(weights).items():
            moved, whole = length(weights, names, self.last), length(self.last, names)
            own = self._farthest.get(group)
            allowed = UNKNOWN * whole if own is None else max(limit * own * steps, LEAST * whole)
            if moved > allowed:
                raise OffPlan(
                    f"the server brings weights that have moved too far: {group} by {moved:.3g}, and {steps} steps "
                    f"with largest_move={limit:g} allow {allowed:.3g}"
                )

    def take(self, order: Message) -> None:
        """These are what the client starts from."""
        self.last = {
            name: t.detach().clone() for name, t in weights_in(order).items() if name.startswith((NET, STAT))
        }
        self._at = self._place(order)

    def made(self, answer: Message, steps: int) -> None:
        """What the client has made of them in so many steps."""
        weights = weights_in(answer)
        if steps and self.last.keys() <= weights.keys():
            for group, names in groups(self.last).items():
                own = length(weights, names, self.last) / steps
                self._farthest[group] = max(own, self._farthest.get(group, 0.0))

    def seen(self) -> dict[str, Any]:
        return {"at": self._at, "farthest": dict(self._farthest)}

    def tensors(self) -> State:
        return {LAST + name: t for name, t in self.last.items()}

    def go_to(self, seen: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._at, self._farthest = int(seen["at"]), dict(seen["farthest"])
        self.last = {name.removeprefix(LAST): t for name, t in tensors.items() if name.startswith(LAST)}

    def _place(self, order: Message) -> int:
        """Where in the plan an order stands, in steps of whoever makes the most of them in each round."""
        if order.kind in (Kind.TURN, Kind.WEIGHTS):
            epoch, first, last, _ = numbers(order, "turn", 4)
            return self._before(epoch) + (self._within(epoch, first) if first < last else 0)
        if order.kind is Kind.EVALUATE:
            return self._before(numbers(order, "what", 2)[1])
        return self._before(self._plan.epochs)

    def _before(self, epoch: int) -> int:
        return sum(self._steps(one) for one in range(min(epoch, self._plan.epochs)))

    def _steps(self, epoch: int) -> int:
        alike = self._plan.clients_per_round is None and not self._plan.roles.freezes
        return sum(map(_longest, self._timetable.rounds(0 if alike else epoch)))

    def _within(self, epoch: int, first: int) -> int:
        passed = 0
        for turns in self._timetable.rounds(epoch):
            if any(turn.client == self._client and turn.first == first for turn in turns):
                return passed
            passed += _longest(turns)
        raise OffPlan(f"the server orders batch {first} of epoch {epoch}, where this client has no turn in the plan")


def _longest(turns: Sequence[Any]) -> int:
    return max((turn.last - turn.first for turn in turns), default=0)


def groups(weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Each kernel by itself, biases and scales together, statistics together."""
    found: dict[str, list[str]] = {}
    for name, tensor in weights.items():
        if tensor.is_floating_point() and name.startswith((NET, STAT)):
            alone = tensor.dim() > 1 and name.startswith(NET)
            found.setdefault(name if alone else "statistics" if name.startswith(STAT) else "biases", []).append(name)
    return found


def length(weights: Mapping[str, Tensor], names: Sequence[str], since: Mapping[str, Tensor] | None = None) -> float:
    total = 0.0
    for name in names:
        tensor = weights[name].double()
        total += float((tensor if since is None else tensor - since[name].double()).square().sum())
    return total**0.5
