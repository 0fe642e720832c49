"""A rule decides which client weights the next turn starts from.

Tensors go by name: "net." parameters; "stat." statistics and counters (data, never optimised); "optimizer." the state
of a client's optimizer, which only a relay hands on; "rule." what the rule remembers; "control." SCAFFOLD's variate;
"seal." by which clients know that one of them has made the weights (`training/seals.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from ..core.lost_numbers import finite
from ..core.plan_view import PlanView
from ..core.spec import Spec
from .parts.correction import Correction

NET, STAT, OPTIMIZER, MEMORY, CONTROL, SEAL = "net.", "stat.", "optimizer.", "rule.", "control.", "seal."


class Update(NamedTuple):
    """What a client brings back from its turn, and on how many samples it learnt."""

    state: Mapping[str, Tensor]
    samples: int


class Running(Protocol):
    """A merge that goes on while updates come in."""

    def add(self, update: Update) -> None: ...
    def merged(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, repr=False)
class Rule(Spec):
    """`rule(current, updates) -> state`. Never writes into what it is given.

    All that a rule remembers lies in `current` under "rule." and comes back with the state, so who keeps the state
    keeps the rule's memory. Nothing under "rule." is for the clients.
    """

    merges: ClassVar[bool] = True  # many updates into one state; False: the last one is handed on
    travels: ClassVar[tuple[str, ...]] = (NET, STAT)  # what of the state an order to a client carries

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
        raise NotImplementedError

    def running(self, current: Mapping[str, Tensor]) -> "Running | None":
        """What takes the updates of a round one at a time, and keeps none; None: this rule compares them, and the
        server holds all of a round at once."""
        return None

    @property
    def least(self) -> int:
        """How many updates a round should bring for the rule to do what it promises."""
        return 1

    def among(self, heard: int, clients: int) -> "Rule":
        """The rule in a round that hears so many of the clients."""
        return self

    def fitted(self, tables: Callable[[], Sequence[str]]) -> "Rule":
        """The rule for one network; `tables()` names its embeddings among the parameters."""
        return self

    def correction(self) -> Correction | None:
        """A fresh client's half of the rule, one for every client; None for rules of the server alone."""
        return None

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where this rule cannot work in a plan, with what would; before anything is built."""
        learning = plan.roles.learning(plan.clients)
        there = min(plan.clients_per_round or learning, learning)
        if self.merges and there < self.least:
            raise ValueError(f"{self!r} needs {self.least} clients in a round to keep its promise; there are {there}")

    def refuse_unfit_state(self, state: Mapping[str, Tensor]) -> None:
        """A ValueError where an order brings a client something under `travels` that is nothing of this rule's.

        `state` has "net." and "stat." as the client's own network has them; the rest may be anybody's.
        """
        for name in state:
            if name.startswith(CONTROL):
                raise ValueError(f"{name!r}, which is nothing of this rule's")

    @staticmethod
    def memory(current: Mapping[str, Tensor]) -> int:
        """Bytes the server keeps for the rule, beside the weights."""
        return sum(t.numel() * t.element_size() for name, t in current.items() if name.startswith((MEMORY, CONTROL)))


def sound(current: Mapping[str, Tensor], updates: Sequence[Update]) -> tuple[list[Update], dict[int, str]]:
    """(updates fit to be merged, why others are not, by their place). Ask before every merge: one NaN spoils a sum.

    With nothing in `current` yet, names and shapes cannot be compared, and only numbers are looked at.
    """
    rejected = {place: why for place, update in enumerate(updates) if (why := _unsound(current, update))}
    return [update for place, update in enumerate(updates) if place not in rejected], rejected


def _unsound(current: Mapping[str, Tensor], update: Update) -> str:
    """Why an update cannot be merged; empty if it can."""
    if not isinstance(update.samples, int) or update.samples < 1:
        return f"it says that it learnt from {update.samples!r} samples"
    state = update.state
    expected = {name: t for name, t in current.items() if name.startswith((NET, STAT))}
    if expected:
        known = expected.keys() | {CONTROL + name.removeprefix(NET) for name in expected if name.startswith(NET)}
        if missing := sorted(expected.keys() - state.keys()):
            return f"{missing[0]} is missing"
        if extra := sorted(name for name in state.keys() - known if not name.startswith(OPTIMIZER)):
            return f"{extra[0]} is unknown here"
    for name, tensor in state.items():
        like = expected.get(name, expected.get(name.replace(CONTROL, NET, 1)))
        if like is not None and tensor.shape != like.shape:
            return f"{name} has shape {tuple(tensor.shape)}, not {tuple(like.shape)}"
        if like is not None and tensor.dtype != like.dtype:
            return f"{name} is {tensor.dtype}, not {like.dtype}"
        if tensor.is_floating_point() and not finite(tensor):
            return f"{name} has numbers that are not finite"
    return ""


def check_number(rule: Rule, name: str, low: float, high: float, *, closed: bool = False, fix: str = "") -> None:
    """Refuse a constant outside (low, high), or [low, high) if `closed`."""
    value: Any = getattr(rule, name)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not fits or not (low < value < high or (closed and value == low)):
        bound = f"in {'[' if closed else '('}{low:g}, {high:g})" if isfinite(high) else f"above {low:g}"
        raise ValueError(f"{type(rule).__name__}: {name} is a number {bound}{fix}; got {value!r}")
