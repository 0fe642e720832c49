"""What a server runs, part by part: each by the name it has in the plan, never by its place."""

from torch import Tensor, nn

from ..core.features import Unchanged


class ServerNetwork(nn.Module):
    """The guard's lift, zeros where channels stayed home (Bypass), the body and, where labels travel, the tail."""

    draws_nothing = True  # but for its parts

    def __init__(
        self,
        body: nn.Module,
        *,
        lift: nn.Module | None = None,
        fill: nn.Module | None = None,
        tail: nn.Module | None = None,
    ):
        super().__init__()
        self.lift, self.fill = lift or nn.Identity(), fill or nn.Identity()
        self.body, self.tail = body, tail or Unchanged()

    def forward(self, seen: Tensor, **beside: Tensor) -> Tensor:
        return self.tail(self.behind_lift(self.lift(seen), **beside), **beside)

    def behind_lift(self, z: Tensor, **beside: Tensor) -> Tensor:
        """u from z as the client's guard met it, and what came beside it."""
        return self.body(self.fill(z), **beside)
