"""TextEncoder: a small transformer that reads a whole text and gives it a class (after BERT, Devlin et al. 2019)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..core.batch import PAD
from ..core.features import Features
from .base import Shape, check_choice
from .text_blocks import Positions, Words, behind, skipping
from .text_transformer import TextTransformer


@dataclass(frozen=True, repr=False)
class TextEncoder(TextTransformer):
    """A transformer for texts of token ids, from scratch: one class a text; cut at length x width.

    The client keeps `at` of the layers, 0: the embedding alone; (1, 2): clients in turn. Every token looks at every
    other; their mean is classified. With pad='fixed' padding is a word like any other, and nothing says how long a
    text is; with pad='mask' nobody looks at padding, and the mask crosses the cut: the server learns every length.
    `vocabulary` is how many token ids there are, as in the data.
    """

    causal = False

    pad: Literal["fixed", "mask"] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("TextEncoder: pad", self.pad, ("fixed", "mask"))

    def head_of(self, client: int, shape: Shape) -> nn.Module:
        self.check(shape)
        depth, skips = self._kept(client)
        return EncoderHead(*self._embedding(shape), self._blocks(depth), masks=self.pad == "mask", skips=skips)

    def body(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return EncoderBody(self._blocks(self._behind), nn.LayerNorm(self.width))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        self.check(shape)
        return MeanTail(self.width, classes)


class EncoderHead(nn.Module):
    """Words, their places, and the client's blocks."""

    def __init__(
        self, words: Words, positions: Positions, blocks: nn.ModuleList, masks: bool, skips: int | None = None
    ):
        super().__init__()
        self.words, self.positions, self.blocks, self.masks, self.skips = words, positions, blocks, masks, skips

    def forward(self, x: Tensor) -> Tensor | Features:
        mask = x != PAD if self.masks else None
        z = behind(self.blocks, self.positions(self.words(x)), mask)
        beside = ({} if mask is None else {"mask": mask}) | skipping(z, self.skips)
        return Features(z, beside) if beside else z


class EncoderBody(nn.Module):
    """The server's blocks."""

    def __init__(self, blocks: nn.ModuleList, norm: nn.Module):
        super().__init__()
        self.blocks, self.norm = blocks, norm

    def forward(self, z: Tensor, mask: Tensor | None = None, skips: Tensor | None = None) -> Tensor:
        return self.norm(behind(self.blocks, z, mask, skips))


class MeanTail(nn.Module):
    """The mean of the tokens, classified."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, u: Tensor, mask: Tensor | None = None, **others: Tensor) -> Tensor:
        if mask is None:
            return self.linear(u.mean(1))
        words = mask.to(u)[:, :, None]
        return self.linear((u * words).sum(1) / words.sum(1).clamp_min(1))
