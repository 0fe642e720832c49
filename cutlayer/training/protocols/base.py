"""What a plan says of its protocol: the facts that other parts go by, and the networks of both sides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import nn

from ...core.features import Form
from ...core.guard import GuardModule, Shape
from ...core.spec import Spec
from ...core.split import Split
from ...guards.base import Guard, NoGuard

if TYPE_CHECKING:
    from ..plan.plan import Plan


class Cut(NamedTuple):
    """Shapes along the way: z at the cut, what the guard reads of it, what is sent, u from the body."""

    z: Shape
    shared: Shape
    sent: Shape
    u: Shape
    beside: Mapping[str, Form] = {}  # what crosses beside z, by name
    tokens: bool = False  # z is (tokens, features), not (channels, places)


@dataclass(frozen=True, repr=False)
class Protocol(Spec):
    """Frozen and typable. Everybody else asks for its facts and its networks, never which protocol it is."""

    labels_stay_home: ClassVar[bool] = True  # the tail and the loss are the client's; else the server's
    crosses: ClassVar[bool] = True  # whether anything but weights leaves the client
    has_body: ClassVar[bool] = True  # whether anybody runs the network's body
    keeps_places: ClassVar[bool] = True  # whether what comes back for a place of a text is made of earlier ones alone
    learns_together: ClassVar[bool] = True  # whether clients have anything from each other or from a server
    can_send_once: ClassVar[bool] = False  # whether the server can go on from activations that it has kept

    def shared_shape(self, z: Shape, guard: Guard) -> Shape:
        """The shape of what the guard reads of a cut activation, channels or features first; the rest stays home."""
        return z

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        """The client's network. Where nothing crosses, `head` has the body behind it, if there is one; where labels
        travel, there is no tail.

        What is drawn here follows the tail's numbers, under the tail's seed.
        """
        raise NotImplementedError

    def server_parts(self, cut: Cut) -> dict[str, nn.Module]:
        """What the server runs beside lift, body and tail, by its name in `ServerNetwork`."""
        return {}

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        """A ValueError where this plan cannot be, with what would work; before anything is built."""
        if self.crosses:
            return
        if not isinstance(plan.guard, NoGuard):
            raise ValueError(f"nothing crosses in {self} that {plan.guard!r} could guard")
        if not self.learns_together:
            return
        if not plan.shared_client_network or plan.roles.learning(plan.clients) < plan.clients:
            raise ValueError(f"{self}: without weights that are merged nothing is learnt together")
