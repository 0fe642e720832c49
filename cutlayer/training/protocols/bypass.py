"""Split learning with a bypass: a part of the cut stays home, and the server never sees it (PRISM: Madill 2025)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from ...core.batch import Batch
from ...core.guard import GuardModule, Shape
from ...core.remote import Remote
from ...core.split import Output, Split, each
from ...guards.base import Guard
from ...nets.bypass import FUSIONS, FillChannels, OnTokens, Rejoin, turned
from .base import Cut, Protocol


@dataclass(frozen=True, repr=False)
class Bypass(Protocol):
    """A part never leaves and rejoins what the server returns: whole channels, or what the guard holds back."""

    home: float = 0.5  # the share of channels that never leave
    fusion: Literal["residual", "concat", "hybrid"] = "residual"  # how what stayed home rejoins u
    keeps_places: ClassVar[bool] = False  # what stays home are places of a text, and they rejoin all others

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            raise ValueError(f"fusion is one of {', '.join(FUSIONS)}; got {self.fusion!r}")
        if not 0 < self.home < 1:
            raise ValueError(f"home is the share of channels that stay with the client, in (0, 1); got {self.home}")

    def shared_shape(self, z: Shape, guard: Guard) -> Shape:
        if guard.holds_back:
            return z
        if z[0] < 2:
            raise ValueError(f"Bypass keeps some channels home, but the cut {z} has only one")
        return (z[0] - min(z[0] - 1, max(1, round(self.home * z[0]))), *z[1:])

    def client(self, head: nn.Module, tail: nn.Module | None, guard: GuardModule, cut: Cut) -> Split:
        assert tail is not None
        z, shared, u = (turned(one) if cut.tokens else one for one in (cut.z, cut.shared, cut.u))
        held = z[0] - shared[0] or z[0]  # where all channels are shared, the guard holds back of each
        rejoin = Rejoin((held, *z[1:]), u, self.fusion)
        network = TokenBypassNetwork if cut.tokens else BypassNetwork
        return network(head, tail, guard, sent=shared[0], rejoin=OnTokens(rejoin) if cut.tokens else rejoin)

    def server_parts(self, cut: Cut) -> dict[str, nn.Module]:
        return {"fill": OnTokens(FillChannels(cut.z[1])) if cut.tokens else FillChannels(cut.z[0])}


class BypassNetwork(Split):
    """A part never leaves and rejoins what the server returns: whole channels, or what the guard holds back."""

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        guard: GuardModule | None = None,
        *,
        sent: int,
        rejoin: nn.Module,
    ):
        super().__init__(head, tail, guard)
        self.sent, self.rejoin = sent, rejoin

    def share(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        return z[:, : self.sent].contiguous(), z[:, self.sent :]

    def forward(self, batch: Batch, server: Remote) -> Output:
        (seen, penalty, rows, home), beside = self.guarded(batch)
        u = each(server.body(seen, self.guard.packed, beside), self.guard.answers(seen, rows))
        return Output(self.tail(self.rejoin(u, home), **beside), penalty)


class TokenBypassNetwork(BypassNetwork):
    """Of every token some features stay home; the server would not read a text of which some words did."""

    def share(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        return z[..., : self.sent].contiguous(), z[..., self.sent :]
