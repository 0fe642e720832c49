"""The client without a server, to compare with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from ...core.batch import Batch
from ...core.guard import GuardModule
from ...core.remote import Remote
from ...core.split import Output, Split
from ...nets.local import MOST_WIDTH, local_network
from .base import Cut, Protocol

if TYPE_CHECKING:
    from ..plan.plan import Plan


@dataclass(frozen=True, repr=False)
class Alone(Protocol):
    """No server: each client has a small network of its own in place of the body, and nothing leaves (a baseline)."""

    width: int = 64  # of the local network: channels, or numbers where the cut is a vector or tokens
    crosses: ClassVar[bool] = False
    has_body: ClassVar[bool] = False
    learns_together: ClassVar[bool] = False
    keeps_places: ClassVar[bool] = False  # the local network reads the mean of a text's places

    def __post_init__(self) -> None:
        if type(self.width) is not int or not 1 <= self.width <= MOST_WIDTH:
            raise ValueError(f"width is a whole number from 1 to {MOST_WIDTH}; got {self.width!r}")

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        assert tail is not None
        return AloneNetwork(head, tail, guard, local=local_network(cut.z, cut.u, self.width, cut.tokens))

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        super().refuse_unfit_plan(plan)
        if plan.rounds.merges or (plan.shared_client_network and plan.clients > 1):
            raise ValueError(
                f"{self}: each client learns by itself and nothing is merged or handed on: take rounds=Relay() and "
                "shared_client_network=False (--own-client-network)"
            )
        if plan.roles.learning(plan.clients) < plan.clients:
            raise ValueError(f"{self}: a client that does not learn has nobody to learn from: take roles=AllActive()")


class AloneNetwork(Split):
    """No server: a local network takes the body's place, and nothing leaves (a baseline)."""

    def __init__(self, head: nn.Module, tail: nn.Module, guard: GuardModule | None = None, *, local: nn.Module):
        super().__init__(head, tail, guard)
        self.local = local

    def forward(self, batch: Batch, server: Remote) -> Output:
        guarded, beside = self.guarded(batch)
        return Output(self.tail(self.local(guarded.seen, **beside), **beside), guarded.penalty)
