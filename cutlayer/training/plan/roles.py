"""What a client does in a pass: learn, feed the server's learning without any of its own, or nothing."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from ...core.seeds import derive, generator
from ...core.spec import Spec

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["AllActive", "Frozen"]


class Role(Enum):
    """Of one client in one pass."""

    ACTIVE = "active"
    FROZEN = "frozen"  # forward only, no gradients and no optimizer state
    OUT = "out"


@dataclass(frozen=True, repr=False)
class Roles(Spec):
    """Says for every pass who does what."""

    freezes: ClassVar[bool] = True  # whether somebody may be frozen or left out

    def at(self, number: int, clients: int, seed: int) -> list[Role]:
        """The role of each client in pass `number`, counted over all epochs."""
        raise NotImplementedError

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
