"""A guard: what a client does to its activations before they leave, and how the server reads them."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from ..batch import Batch
from ..spec import Spec

Shape = tuple[int, ...]  # of one sample, without the batch


class Guarded(NamedTuple):
    """`seen` leaves the client. `penalty` joins the loss under its name. `kept` stays for `restore`."""

    seen: Tensor
    penalty: dict[str, Tensor] = {}  # noqa: RUF012  (never written to: guards build their own)
    kept: Any = None


class GuardModule(nn.Module):
    """The client's half. This one changes nothing.

    Whatever a client must not hand on (keys) belongs in non-persistent buffers: `state_dict` is what a relay shows.
    """

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        return Guarded(z)

    def restore(self, u: Tensor, kept: Any) -> Tensor:
        """Undo on what came back whatever the guard did to the batch (its order, its rows)."""
        return u


@dataclass(frozen=True, repr=False)
class Guard(Spec):
    """The description of a guard: frozen, comparable, typable. Modules are built from it.

    `public` is a seed that both sides know, `private` one that only the client has.
    """

    # A client-only guard changes nothing a server must undo; the server's copy of a plan does not mention it.
    client_only: ClassVar[bool] = False

    def out_shape(self, shape: Shape) -> Shape:
        """The shape that leaves, or a ValueError that says why this guard does not fit this cut."""
        return shape

    def build(self, shape: Shape, public: int, private: int) -> GuardModule:
        """The client's module."""
        raise NotImplementedError

    def lift(self, shape: Shape, public: int) -> nn.Module:
        """The server's module: from what was sent back to the shape the body reads. It trains with the body."""
        return nn.Identity()

    def undo(self, shape: Shape, public: int) -> nn.Module | None:
        """The public map back to the shape of the cut that an attacker would use; None: read what was sent."""
        return None

    def public_part(self) -> "Guard":
        """What the server may know of this guard."""
        return NoGuard() if self.client_only else self


@dataclass(frozen=True, repr=False)
class NoGuard(Guard):
    """Nothing: the activation leaves as it is. The row every guard is compared with."""

    def build(self, shape: Shape, public: int, private: int) -> GuardModule:
        return GuardModule()


def kept_width(guard: Spec, ratio: float, width: int) -> int:
    """k = floor(width / ratio) (LightSplit, Sec. IV), refused where that is no compression of this width."""
    if not isinstance(ratio, int | float) or not 1 <= ratio <= width:
        raise ValueError(f"{guard}: ratio is how many times narrower the cut gets, 1 to {width} here; got {ratio!r}")
    return int(width // ratio)
