"""Plain federated learning, to compare with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from ...core.batch import Batch
from ...core.guard import GuardModule
from ...core.remote import Remote
from ...core.split import Output, Split
from .base import Cut, Protocol

if TYPE_CHECKING:
    from ..plan.plan import Plan


@dataclass(frozen=True, repr=False)
class Federated(Protocol):
    """No cut: the whole network is the client's and only weights travel (plain federated learning, a baseline)."""

    crosses: ClassVar[bool] = False

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        super().refuse_unfit_plan(plan)
        if plan.epochs and not plan.client_parts_train:
            raise ValueError(
                f"{self}: no part of the network trains, and nothing else could: take fewer frozen_parts"
            )

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        return FederatedNetwork(head, tail, guard)


class FederatedNetwork(Split):
    """No cut: the whole network is the client's and only weights travel (plain federated learning, a baseline)."""

    def forward(self, batch: Batch, server: Remote) -> Output:
        guarded, beside = self.guarded(batch)
        return Output(self.tail(guarded.seen, **beside), guarded.penalty)
