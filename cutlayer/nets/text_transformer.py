"""What the text networks share: their sizes, and which texts they take."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.plan_view import PlanView
from .base import Net, Shape
from .text_blocks import Block, Positions, Words

MOST_LENGTH = 4096  # tokens of a text: attention looks at every pair of them


@dataclass(frozen=True, repr=False)
class TextTransformer(Net):
    """A transformer for token ids; the client keeps its first `at` layers, 0: the embedding alone.

    `at=(1, 2)`: clients keep these in turn, as their devices can. The body then has all layers behind the fewest, and
    how many of them to skip crosses beside z.
    """

    causal: ClassVar[bool]  # whether a token looks only at itself and those before it

    layers: int = 2
    width: int = 64
    heads: int = 2
    at: int | tuple[int, ...] = 1
    vocabulary: int = 5000
    dropout: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        for what in ("layers", "width", "heads", "vocabulary"):
            value = getattr(self, what)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: {what} is a whole number above 0; got {value!r}")
        if self.width % self.heads:
            raise ValueError(
                f"{name}: width is shared evenly by the heads; {self.width} is no multiple of {self.heads}"
            )
        if not self._depths or any(type(one) is not int or not 0 <= one < self.layers for one in self._depths):
            raise ValueError(
                f"{name}: at is how many of the {self.layers} layers the client keeps, 0 (the embedding cut) to "
                f"{self.layers - 1}, or a tuple of such; got {self.at!r}"
            )

    @property
    def _depths(self) -> tuple[int, ...]:
        return self.at if isinstance(self.at, tuple) else (self.at,)

    @property
    def _behind(self) -> int:
        """Layers of the body."""
        return self.layers - min(self._depths)

    def _kept(self, client: int) -> tuple[int, int | None]:
        """(layers a client has, those of the body that it skips); None: all clients have the same."""
        depth = self._depths[client % len(self._depths)]
        return depth, depth - min(self._depths) if isinstance(self.at, tuple) else None

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        if not isinstance(self.at, tuple):
            return
        if not plan.protocol.crosses:
            raise ValueError(f"{self!r}: where nothing crosses every client has all layers: take one number for at")
        if plan.shared_client_network and plan.clients > 1:
            raise ValueError(
                f"{self!r}: networks of unequal depth cannot be handed on or merged: --own-client-network, or one "
                "number for at"
            )

    def head(self, shape: Shape) -> nn.Module:
        return self.head_of(0, shape)

    def check(self, shape: Shape) -> None:
        if len(shape) != 1:
            raise ValueError(
                f"{type(self).__name__} reads (length,), the token ids of a text; got {tuple(shape)}. For rows of a "
                "table take MLP, for images SimpleCNN"
            )
        if not 1 <= shape[0] <= MOST_LENGTH:
            raise ValueError(
                f"{type(self).__name__} reads texts of at most {MOST_LENGTH} tokens, and these have {shape[0]}: give "
                f"the data length={MOST_LENGTH} or less"
            )

    def check_vocabulary(self, vocabulary: int) -> None:
        name = type(self).__name__
        if not vocabulary:
            raise ValueError(
                f"{name} reads token ids, and these data are amounts: take MLP, or data such as Texts or IMDB"
            )
        if vocabulary != self.vocabulary:
            raise ValueError(
                f"{name} knows {self.vocabulary} token ids and the tokenizer of the data has {vocabulary}: give both "
                f"the same vocabulary, e.g. {name}(vocabulary={vocabulary})"
            )

    def in_tokens(self, shape: Shape) -> bool:
        return True

    def _embedding(self, shape: Shape) -> tuple[Words, Positions]:
        return Words(self.vocabulary, self.width), Positions(shape[0], self.width)

    def _blocks(self, count: int) -> nn.ModuleList:
        made = (Block(self.width, self.heads, causal=self.causal, dropout=self.dropout) for _ in range(count))
        return nn.ModuleList(made)
