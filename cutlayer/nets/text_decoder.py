"""TextDecoder: a small causal transformer that names the next token (after GPT-2, Radford et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..core.features import Features
from .base import Shape
from .text_blocks import Memory, Positions, Words, behind, skipping
from .text_transformer import TextTransformer


@dataclass(frozen=True, repr=False)
class TextDecoder(TextTransformer):
    """A causal transformer for texts of token ids, from scratch: scores of every next token; cut at length x width.

    The client keeps `at` of the layers; (1, 2): clients in turn. A token looks at itself and those before it. Scores
    are (B, vocabulary, T): those of place t are for token t+1, so labels are the text itself, a token on (data with
    next_token=True). The tail, which names words, stays with the client.
    """

    causal = True

    def head_of(self, client: int, shape: Shape) -> nn.Module:
        self.check(shape)
        depth, skips = self._kept(client)
        return DecoderHead(*self._embedding(shape), self._blocks(depth), skips)

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return DecoderBody(*self._blocks(self._behind), nn.LayerNorm(self.width))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return NextToken(self.width, classes)


class DecoderHead(nn.Module):
    """Words, their places, and the client's blocks."""

    def __init__(self, words: Words, positions: Positions, blocks: nn.ModuleList, skips: int | None = None):
        super().__init__()
        self.words, self.positions, self.blocks, self.skips = words, positions, blocks, skips

    def forward(self, x: Tensor) -> Tensor | Features:
        return self.sent(behind(self.blocks, self.positions(self.words(x))))

    def sent(self, z: Tensor) -> Tensor | Features:
        """z, and what crosses beside it."""
        beside = skipping(z, self.skips)
        return Features(z, beside) if beside else z

    def going_on(self, x: Tensor, place: int, memories: Sequence[Memory]) -> Tensor:
        """z of the tokens x alone, before which `place` others came; what blocks keep of those is in `memories`."""
        z = self.positions.after(self.words(x), place)
        for block, memory in zip(self.blocks, memories, strict=True):
            z = block(z, memory=memory)
        return z


class DecoderBody(nn.Sequential):
    """The server's blocks, and a normalisation behind them."""

    def forward(self, z: Tensor, skips: Tensor | None = None, memories: Sequence[Memory] | None = None) -> Tensor:
        """With `memories`, u of the places z alone, behind those that blocks keep there."""
        *blocks, norm = self
        if memories is None:
            return norm(behind(blocks, z, skips=skips))
        for block, memory in zip(blocks, memories, strict=True):
            z = block(z, memory=memory)
        return norm(z)

    def empty(self) -> list[Memory]:
        """For a text that begins."""
        return [Memory() for _ in list(self)[:-1]]


class NextToken(nn.Module):
    """A score for every token that might come next, at every place."""

    def __init__(self, width: int, vocabulary: int):
        super().__init__()
        self.linear = nn.Linear(width, vocabulary)

    def forward(self, u: Tensor, **others: Tensor) -> Tensor:
        return self.linear(u).transpose(1, 2)  # classes before places, as for maps of pixels
