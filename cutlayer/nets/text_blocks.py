"""Layers of text networks: words and their places as vectors, and blocks of attention.

Shapes: B texts, T tokens, D numbers a token, H heads.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Adds to each token a vector of its place. A layer of its own: DP-SGD takes gradients apart layer by layer."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, 0)

    def after(self, x: Tensor, place: int) -> Tensor:
        """The same where so many tokens came before those of x."""
        return x + self.weight[place : place + x.shape[1]]


class Words(nn.Module):
    """Token ids (B, T), whole or as floats, to vectors (B, T, D): a lookup in a table."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.long()
        # A program of torch.export holds no look at numbers; the table itself refuses ids that it has not.
        if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_exporting():
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= self.table.num_embeddings:
                raise ValueError(
                    f"this network knows the token ids 0 to {self.table.num_embeddings - 1}; the data have {low} to "
                    f"{high}: give the network the vocabulary of the data"
                )
        return self.table(ids)


@dataclass
class Memory:
    """Keys and values of the tokens a block has seen, so that the next token is computed alone."""

    keys: Tensor | None = None  # (B, H, T, D / H)
    values: Tensor | None = None

    def extended(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        self.keys, self.values = keys, values
        return keys, values

    def shortened(self, places: int) -> None:
        """Keep so many at most: what came behind comes anew."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :places], self.values[:, :, :places]


class Attention(nn.Module):
    """Every token looks at all tokens, or (causal) at itself and those before it.

    Written out rather than torch's fused one: that has no second derivative, which attacks on gradients take.
    """

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        """`mask` (B, T) is true at words, false at padding, which nobody looks at."""
        query, key, value = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        if memory is not None:
            key, value = memory.extended(key, value)
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5  # (B, H, T, all T)
        lowest = torch.finfo(scores.dtype).min
        if self.causal:
            new, seen = scores.shape[2:]
            later = torch.ones(new, seen, dtype=torch.bool, device=x.device).triu(seen - new + 1)
            scores = scores.masked_fill(later, lowest)
        if mask is not None:
            scores = scores.masked_fill(~mask.bool()[:, None, None, :], lowest)
        return self.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def behind(blocks: Iterable[nn.Module], z: Tensor, mask: Tensor | None = None, skips: Tensor | None = None) -> Tensor:
    """z after these blocks; `skips` (B,) says of each text how many of the first were the client's."""
    for number, block in enumerate(blocks):
        after: Tensor = block(z, mask)
        z = after if skips is None else torch.where((skips <= number)[:, None, None], after, z)
    return z


def skipping(z: Tensor, skips: int | None) -> dict[str, Tensor]:
    """What a client of a depth of its own sends beside z."""
    return {} if skips is None else {"skips": torch.full((len(z),), skips, dtype=torch.uint8, device=z.device)}


class Block(nn.Module):
    """Attention, then two linear layers, each added to what came in and normalised before (pre-norm)."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, dropout: float = 0.0):
        super().__init__()
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.before_attention(x), mask, memory))
        return x + self.dropout(self.linear(self.before_linear(x)))
