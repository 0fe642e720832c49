"""Readers of texts: token by token in closed form, a token with its neighbours, and the whole message at once.

They answer with token ids. One that never stood in what they learnt from is never named.
"""

import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.stepping import adamw
from .components import Components
from .readers import Before, Reader
from .row_readers import Pairs, Size
from .texts import token_accuracy

ROUNDS = 5  # of setting tokens and places apart
STRENGTHS = (1e-4, 1e-2, 1e-1)  # of what is added to the scatter of a token, in units of its mean
AT_ONCE = 512  # tokens of a step whose names are asked for: a vocabulary is wide, and a batch has thousands
CHUNK = 64  # texts that are read at once
RATE, DECAY, DROP = 3e-3, 1e-2, 0.1
WIDE, KEPT = 1024, 512  # numbers in a message from which the reader of the whole is given its components, so many
HEADS = 4


def train_text_reader(name: str, size: Size, pairs: Pairs, undo: nn.Module | None = None) -> Reader | None:
    """The reader of this name; None: it cannot read such messages.

    "ridge" and "conv" read messages that are rows of numbers along the text, if need be after the guard's public map
    back; for "ridge" there has to be one for each token. "mlp" reads any.
    """
    length, ids = pairs.truth.shape[1], int(pairs.truth.max()) + 1
    with torch.no_grad():
        if name == "mlp":
            wide = pairs.seen[0].numel() > WIDE
            flat = Components(pairs.seen, KEPT) if wide else nn.Flatten()
            rows = flat(pairs.seen)
            return Before(flat, fit_text(WholeReader(rows.shape[1], length, size, ids), rows, pairs.truth, size))
        step = AlongText(undo)
        lines = step(pairs.seen)
        if lines.dim() != 3:
            return None
        if name == "conv":
            return Before(
                step, fit_text(AlongReader(tuple(lines.shape[1:]), length, size, ids), lines, pairs.truth, size)
            )
        if lines.shape[1] != length:
            return None
        return Before(step, closed_form(lines, pairs.truth, step(pairs.held_seen), pairs.held_truth))


class AlongText(nn.Module):
    """Messages as rows along a text: the guard's public map back, and of a learned code its positions in order."""

    def __init__(self, undo: nn.Module | None):
        super().__init__()
        self.undo = undo

    def forward(self, seen: Tensor) -> Tensor:
        lines = seen if self.undo is None else self.undo(seen)
        return lines.flatten(2).transpose(1, 2) if lines.dim() == 4 else lines


class Apart(NamedTuple):
    """What a token, and what its place, adds to a row: z = E[token] + P[place]."""

    tokens: Tensor  # (ids, numbers)
    places: Tensor  # (length, numbers)


def set_apart(lines: Tensor, texts: Tensor) -> Apart:
    """The two by alternating least squares: an embedding with positions is exactly such a sum."""
    ids, numbers = texts.flatten(), lines.shape[2]
    counts = ids.bincount().clamp_min(1)[:, None].to(lines)
    tokens = lines.new_zeros(len(counts), numbers)
    for _ in range(ROUNDS):
        places = (lines - tokens[texts]).mean(0)
        tokens = torch.zeros_like(tokens).index_add(0, ids, (lines - places).flatten(0, 1)) / counts
    return Apart(tokens, places)


def scatter(lines: Tensor, texts: Tensor, apart: Apart) -> Tensor:
    """How rows of one and the same token vary, which the words around it do: (numbers, numbers)."""
    error = (lines - apart.places - apart.tokens[texts]).flatten(0, 1)
    return error.T @ error / len(error)


def strengthened(scatter: Tensor, apart: Apart, strength: float) -> Tensor:
    """With a ridge. Where nothing but the token makes a row the scatter is 0, and any distance tells."""
    spread = (apart.tokens - apart.tokens.mean(0)).square().mean()
    ridge = strength * (scatter.diagonal().mean() + 1e-6 * spread).clamp_min(1e-30)
    return scatter + ridge * torch.eye(len(scatter)).to(scatter)


@torch.no_grad()
def evened(lines: Tensor, texts: Tensor, strength: float = 1e-2) -> Tensor:
    """A map of rows after which those of one token scatter alike in all directions: there distances compare words."""
    lines = lines.double()
    apart = set_apart(lines, texts)
    values, vectors = torch.linalg.eigh(strengthened(scatter(lines, texts, apart), apart, strength))
    return vectors / values.clamp_min(1e-30).sqrt()


def closed_form(lines: Tensor, texts: Tensor, held: Tensor, held_texts: Tensor) -> "TokenRule":
    """Fisher's discriminant of single tokens: the nearest mean, in units of how a token's rows scatter."""
    lines, held = lines.double(), held.double()
    apart = set_apart(lines, texts)
    within = scatter(lines, texts, apart)
    counts = texts.flatten().bincount(minlength=len(apart.tokens)).double()
    found: list[tuple[float, TokenRule]] = []
    for strength in STRENGTHS:
        weights = torch.linalg.solve(strengthened(within, apart, strength), apart.tokens.T)
        bias = counts.clamp_min(0.5).log() - 0.5 * (apart.tokens.T * weights).sum(0)
        bias[counts == 0] = -torch.inf
        rule = TokenRule(weights, bias, apart.places)
        found.append((float(token_accuracy(held_texts, rule(held)).mean()), rule))
    return max(found, key=lambda one: one[0])[1]


class TokenRule(nn.Module):
    """The id whose linear score is the highest, for every token by itself."""

    weights: Tensor
    bias: Tensor
    places: Tensor

    def __init__(self, weights: Tensor, bias: Tensor, places: Tensor):
        super().__init__()
        for name, tensor in (("weights", weights), ("bias", bias), ("places", places)):
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, lines: Tensor) -> Tensor:
        chunks = lines.double().split(CHUNK)
        return torch.cat([((some - self.places) @ self.weights + self.bias).argmax(2) for some in chunks])


class AlongReader(nn.Module):
    """A row for each token to that token, with an eye on the others: attention between two linear maps.

    Where there are fewer rows than tokens, neighbours share one.
    """

    of: Tensor

    def __init__(self, cut: tuple[int, ...], length: int, size: Size, ids: int):
        super().__init__()
        width = HEADS * max(1, size.width // HEADS)
        self.first = nn.Linear(cut[1], width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.register_buffer("of", torch.arange(length) * cut[0] // length)
        self.block = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, DROP, "gelu", batch_first=True, norm_first=True
        )
        self.words = nn.Linear(width, ids)

    def forward(self, lines: Tensor) -> Tensor:
        return self.block(self.first(lines)[:, self.of] + self.places)


class WholeReader(nn.Module):
    """Fully connected from all numbers of a message to every token: no belief about which belong together."""

    def __init__(self, inputs: int, length: int, size: Size, ids: int):
        super().__init__()
        self.length, self.width = length, size.width
        self.layers = nn.Sequential(
            nn.Linear(inputs, size.hidden), nn.LeakyReLU(0.1), nn.Dropout(DROP),
            nn.Linear(size.hidden, length * size.width),
        )  # fmt: skip
        self.words = nn.Linear(size.width, ids)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows).reshape(len(rows), self.length, self.width)


class NamedTokens(nn.Module):
    """A trained reader behind the means and deviations it was trained on: messages to ids."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: AlongReader | WholeReader, mean: Tensor, std: Tensor):
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @torch.no_grad()
    def scores(self, seen: Tensor) -> Tensor:
        """(texts, length, ids): the higher, the likelier."""
        return self.network.words(self.network((seen - self.mean) / self.std))

    @torch.no_grad()
    def forward(self, seen: Tensor) -> Tensor:
        return torch.cat([self.scores(some).argmax(2) for some in seen.split(CHUNK)])


def fit_text(network: AlongReader | WholeReader, seen: Tensor, texts: Tensor, size: Size) -> NamedTokens:
    """Train a reader on (seen, texts); it ends early once it has used the seconds of CPU time it is given."""
    began, network = time.process_time(), network.to(seen)
    # By number and place: what a place adds to every token says nothing about the token.
    mean, spread = seen.mean(0), seen.std(0)
    std = spread.clamp_min(1e-2 * float(spread.mean()) + 1e-6)
    optimizer = adamw(network.parameters(), RATE, DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=size.steps)
    with torch.enable_grad():
        for _ in range(size.steps):
            pick = torch.randint(len(seen), (size.batch,)).to(seen.device)
            rows, wanted = network((seen[pick] - mean) / std).flatten(0, 1), texts[pick].flatten()
            some = torch.randperm(len(wanted))[:AT_ONCE].to(seen.device)
            error = cross_entropy(network.words(rows[some]), wanted[some])
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            schedule.step()
            if time.process_time() - began > size.seconds:
                break
    return NamedTokens(network, mean, std)
