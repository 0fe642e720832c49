"""A run as plain objects: what is trained on what, cut where, guarded how. A recipe returns one."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple

from .data.base import Source
from .data.digits import Digits
from .guards import Guard, NoGuard
from .guards.base import Shape
from .nets.base import Net, shapes
from .nets.simple_cnn import SimpleCNN
from .optimizers import Adam, Optimizer
from .partitions import IID, Partition
from .rules import Latest, Rule
from .schedules import Constant, Schedule
from .spec import Spec
from .split import Bypass, Split, UShaped

__all__ = ["Plan"]

PARTS = ("head", "body", "tail")


class Task(NamedTuple):
    """What both sides must know of the data: the shape of one input and the number of classes."""

    shape: Shape
    classes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Spec):
    """One run. Everything here may be shown to the server, except client-only guards and `private_seed`.

    `seed` is public: it gives the body, the public maps of guards and the simulated partition. `private_seed` gives
    heads, tails, batch order, keys and noise; it is never shown, and the server cannot compute it from `seed`.
    """

    net: Net = SimpleCNN()
    data: Source = Digits()
    protocol: type[Split] = UShaped
    guard: Guard = NoGuard()
    home: float = 0.5  # the share of channels that never leave (Bypass)
    clients: int = 1
    partition: Partition = IID()
    shared: bool = True  # one head and tail handed on from client to client (SCH), or one per client (PCH)
    rule: Rule = Latest()
    turn: int = 1  # batches a client learns from before the next one takes over; 0: its whole epoch
    epochs: int = 5
    batch: int = 64
    client_optimizer: Optimizer = Adam()
    server_optimizer: Optimizer = Adam()
    schedule: Schedule = Constant()
    frozen: tuple[str, ...] = ()  # parts that do not train: head, body, tail
    weights: str = ""  # a file with a whole network's weights to start from; each side takes only its own part
    skip_tail: bool = False  # leave the classifier out of `weights`: other classes than it was trained for
    patience: int = 0  # epochs without a better validation accuracy before it stops; 0: never
    val: float = 0.1  # share of the training data that chooses the best epoch
    aux: int = 0  # training samples set aside as the attacker's own data
    seed: int = 0
    private_seed: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = {"clients": 1, "turn": 0, "epochs": 0, "batch": 2, "patience": 0, "aux": 0}
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} up; got {value!r}")
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} cannot be {getattr(self, name)!r}; see: cutlayer list {_LISTS[name]}")
        if not (isinstance(self.protocol, type) and issubclass(self.protocol, Split)):
            raise ValueError(f"protocol is Vanilla, UShaped or Bypass; got {self.protocol!r}")
        if unknown := set(self.frozen) - set(PARTS):
            raise ValueError(f"frozen names parts among {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
        if not 0 < self.home < 1:
            raise ValueError(f"home is the share of channels that stay with the client, in (0, 1); got {self.home}")
        if not 0 <= self.val < 1:
            raise ValueError(f"val is the share of training data for validation, in [0, 1); got {self.val}")
        if self.patience and not self.val:
            raise ValueError("early stopping needs validation data: give val a share above 0, or patience=0")

    def public(self) -> "Plan":
        """The server's copy: no client-only guards, no private seed."""
        return replace(self, guard=self.guard.public_part(), private_seed=None)

    def fingerprint(self) -> str:
        """A hash of the public part, agreed on before the first step."""
        return sha256(repr(self.public()).encode()).hexdigest()[:16]

    def with_secrets(self) -> "Plan":
        """This plan with a private seed; drawn afresh unless one was fixed (tests, audits)."""
        if self.private_seed is not None:
            return self
        return replace(self, private_seed=secrets.randbits(63))


_KINDS: dict[str, Any] = {
    "net": Net,
    "data": Source,
    "guard": Guard,
    "partition": Partition,
    "rule": Rule,
    "client_optimizer": Optimizer,
    "server_optimizer": Optimizer,
    "schedule": Schedule,
}
_LISTS = {
    **{name: f"{name}s" for name in ("net", "guard", "partition", "rule")},
    "data": "data",
    "client_optimizer": "optimizers",
    "server_optimizer": "optimizers",
    "schedule": "schedules",
}


class Cut(NamedTuple):
    """Shapes along the way: z at the cut, what the guard reads of it, what is sent, u from the body."""

    z: Shape
    shared: Shape
    sent: Shape
    u: Shape


def cut_shapes(plan: Plan, task: Task) -> Cut:
    """All shapes of a plan; a guard or net that does not fit refuses here, before anything is built."""
    plan.net.check(task.shape)
    z, u = shapes(plan.net, task.shape)
    shared = z
    if plan.protocol is Bypass:
        if z[0] < 2:
            raise ValueError(f"Bypass keeps some channels home, but the cut {z} has only one")
        shared = (z[0] - min(z[0] - 1, max(1, round(plan.home * z[0]))), *z[1:])
    return Cut(z, shared, plan.guard.out_shape(shared), u)


def steps_per_epoch(sizes: Sequence[int], batch: int) -> int:
    """Batches in an epoch over clients of these sizes (a last batch of one joins the one before)."""
    return sum(max(1, ceil(size / batch) - (size > batch and size % batch == 1)) for size in sizes)
