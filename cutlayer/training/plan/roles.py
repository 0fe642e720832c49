"""What a client does in a pass: learn, feed the server's learning without any of its own, or nothing.

What all of them do in an epoch is its phase.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from ...core.seeds import derive, generator
from ...core.spec import Spec

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["AllActive", "Frozen", "SendOnce"]


class Role(Enum):
    """Of one client in one pass."""

    ACTIVE = "active"
    FROZEN = "frozen"  # forward only, no gradients and no optimizer state
    OUT = "out"


class Phase(Enum):
    """Of all clients in one epoch."""

    SPLIT = "split"  # they learn with the server
    HOME = "home"  # they learn from what the guard adds to the loss: nothing of a sample leaves
    SEND = "send"  # they are frozen, and the server keeps what comes
    AGAIN = "again"  # it learns from what it kept: no activation travels

    @property
    def frozen(self) -> bool:
        return self in (Phase.SEND, Phase.AGAIN)


@dataclass(frozen=True, repr=False)
class Roles(Spec):
    """Says for every pass who does what."""

    freezes: ClassVar[bool] = True  # whether somebody may be frozen or left out

    def at(self, number: int, clients: int, seed: int) -> list[Role]:
        """The role of each client in pass `number`, counted over all epochs."""
        raise NotImplementedError

    @property
    def turns_vary(self) -> bool:
        """Whether other clients may be left out in one pass than in another."""
        return self.freezes

    def inherits(self, number: int) -> bool:
        """Whether frozen clients take over the newest shared head in this pass."""
        return True

    def learning(self, clients: int) -> int:
        """How many of the clients learn in a pass."""
        return self.at(0, clients, 0).count(Role.ACTIVE)

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        """A ValueError where a plan's clients cannot share the roles so; before anything is built."""

    @property
    def keeps_heads(self) -> bool:
        """Whether some clients hold on to a head of their own beside a shared one."""
        return False

    def phase(self, epoch: int) -> Phase:
        """What all clients do in an epoch, as far as their roles let them."""
        return Phase.SPLIT

    def takes_over(self, epoch: int, number: int) -> bool:
        """Whether clients that all are frozen take over the shared head in this pass of an epoch."""
        return True

    def unguarded(self) -> "Roles":
        """Of the same plan without a guard, to compare with."""
        return self

    def stretch(self, epoch: int, epochs: int) -> tuple[int, int]:
        """(place, length) of an epoch in what a learning-rate schedule takes for the whole training."""
        return epoch, epochs


@dataclass(frozen=True, repr=False)
class AllActive(Roles):
    """Every client learns."""

    freezes = False

    def at(self, number: int, clients: int, seed: int) -> list[Role]:
        return [Role.ACTIVE] * clients


@dataclass(frozen=True, repr=False)
class Frozen(Roles):
    """A share of the clients runs forward only (SL-FC, Madill 2025, ch. 4); the server learns from them all the same.

    They are the last ones of the list, or drawn anew every `rotate` passes. `inherit` is the number of passes between
    two heads they take over from the last active client: 1 always, 0 never. `discard` leaves them out: the
    baseline.
    """

    share: float = 0.5
    inherit: int = 1
    rotate: int = 0
    discard: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share is the part of the clients that is frozen, in (0, 1); got {self.share}")
        if self.rotate and self.inherit != 1:
            raise ValueError("clients whose role changes always start from the shared head: inherit=1, or rotate=0")
        for name in ("inherit", "rotate"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of passes, 0 or more; got {getattr(self, name)!r}")

    def count(self, clients: int) -> int:
        return round(self.share * clients)

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        clients = plan.clients
        if not 0 < self.count(clients) < clients:
            raise ValueError(
                f"{self!r} freezes {self.count(clients)} of {clients} client(s): at least one is frozen and one "
                "learns. Change share, or take more clients"
            )
        learnt = next((part for part in plan.guard.stages() if part.has_to_learn), None)
        if learnt and not self.discard and not self.rotate and not (self.inherit and plan.shared_client_network):
            raise ValueError(
                f"{self!r} freezes clients with a {learnt!r} that was never trained: take inherit=1 and one head for "
                "all (shared_client_network=True), so that they get what the others learnt, or discard=True"
            )

    @property
    def turns_vary(self) -> bool:
        return self.discard and bool(self.rotate)

    @property
    def keeps_heads(self) -> bool:
        return self.inherit != 1 and not self.discard

    def at(self, number: int, clients: int, seed: int) -> list[Role]:
        order = list(range(clients))
        if self.rotate:
            draw = generator(derive(seed, "roles", number // self.rotate))
            order = torch.randperm(clients, generator=draw).tolist()
        resting = set(order[clients - self.count(clients) :])
        role = Role.OUT if self.discard else Role.FROZEN
        return [role if client in resting else Role.ACTIVE for client in range(clients)]

    def inherits(self, number: int) -> bool:
        return bool(self.inherit) and number % self.inherit == 0


@dataclass(frozen=True, repr=False)
class SendOnce(Roles):
    """Clients learn first, freeze, and send each sample's message once: the server keeps it and learns on from that.

    `home` epochs without the server, from what the guard adds to the loss (`Gate(home=...)`), then `split` epochs of
    split learning; learning rates run down in each. Frozen, the clients send `views` passes over their samples, in
    evaluation mode, so that a message hangs on its sample alone. In the epochs that are left no activation travels:
    of a message of B bits, a whole training tells (split + views) · B a sample. What else travels is not covered:
    u and du (or labels before), and shared weights.
    """

    home: int = 0
    split: int = 5
    views: int = 1

    def __post_init__(self) -> None:
        for name, least in {"home": 0, "split": 0, "views": 1}.items():
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} is a number of epochs, from {least} up; got {getattr(self, name)!r}")
        if not self.learnt:
            raise ValueError("a head and a guard that were never trained would be frozen: give home or split epochs")

    @property
    def turns_vary(self) -> bool:
        return False

    @property
    def learnt(self) -> int:
        """Epochs before clients freeze."""
        return self.home + self.split

    @property
    def messages(self) -> int:
        """Of a sample, that are new to the server."""
        return self.split + self.views

    def at(self, number: int, clients: int, seed: int) -> list[Role]:
        return [Role.ACTIVE] * clients

    def phase(self, epoch: int) -> Phase:
        if epoch < self.learnt:
            return Phase.HOME if epoch < self.home else Phase.SPLIT
        return Phase.SEND if epoch < self.learnt + self.views else Phase.AGAIN

    def view(self, epoch: int) -> int:
        """Which pass a frozen epoch sends, or takes again."""
        return (epoch - self.learnt) % self.views

    def unguarded(self) -> Roles:
        return AllActive()  # nothing is gained by sending once what tells all

    def takes_over(self, epoch: int, number: int) -> bool:
        return epoch == self.learnt and number == 0

    def stretch(self, epoch: int, epochs: int) -> tuple[int, int]:
        if epoch < self.home:
            return epoch, self.home
        return (epoch - self.home, self.split) if epoch < self.learnt else (epoch - self.learnt, epochs - self.learnt)

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        if plan.epochs < self.learnt + self.views:
            raise ValueError(
                f"{self!r} has {self.learnt + self.views} epochs before the server goes on by itself, the plan "
                f"{plan.epochs}: more epochs"
            )
        if self.home and not any(part.learns_at_home for part in plan.guard.stages()):
            raise ValueError(f"{plan.guard!r} has nothing to learn from at home: take Gate(home=1.0), or home=0")
        if not plan.protocol.can_send_once:
            raise ValueError(f"{plan.protocol!r} needs its part of a sample in every epoch: take UShaped or Vanilla")
        if plan.guard.mixes_samples:
            raise ValueError(f"{plan.guard!r} mixes the samples of a batch, and they are batched anew: leave it out")
        if plan.rounds.fused or plan.clients_per_round is not None:
            raise ValueError(f"{self!r} freezes all clients, and each sends all it has: no fused waves, and no draws")
        if plan.patience:
            raise ValueError(f"{self!r} says itself how long clients learn: take patience=0")
