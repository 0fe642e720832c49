"""Readers built for codes of few levels: each level by itself, a prior by class, and a search through the encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ...core.guard import Shape
from ...core.stepping import adam
from ...guards.base import Guard
from ...metrics.readers import Before, MLPReader, Reader, fit
from ...metrics.row_readers import DECAY, Pairs, RowReader, error_of
from .pictures import Effort, quality, reader_of

CODES = ("levels", "prior", "search")
NARROW = 256  # numbers in a message up to which it is taken for a code
MOST_LEVELS = 16  # of one number that are told apart
MEMBERS = 2  # readers whose pictures are averaged
LOOKED, RATE = 40, 0.03  # steps of a search, and how far each goes
PULLS = (0.1, 1.0, 10.0)  # towards the picture it starts from
COMPARED = 64  # held-out codes that a pull is chosen by
Encode = Callable[[Tensor, Tensor], Tensor]


def is_code(guard: Guard, shape: Shape) -> bool:
    """Whether what leaves is a row of few numbers with few levels each."""
    sent = guard.out_shape(shape)
    return any(part.packs for part in guard.stages()) and sent != shape and len(sent) == 1 and sent[0] <= NARROW


class Levels(nn.Module):
    """A code with each level of each number as a feature of its own. What has many levels stays as it is."""

    known: Tensor

    def __init__(self, seen: Tensor):
        super().__init__()
        known = seen.flatten().unique()
        self.register_buffer("known", known if len(known) <= MOST_LEVELS else known[:0])

    def forward(self, seen: Tensor) -> Tensor:
        flat = seen.flatten(1)
        if not len(self.known):
            return flat
        place = torch.bucketize(flat.contiguous(), (self.known[1:] + self.known[:-1]) / 2)
        return one_hot(place, len(self.known)).flatten(1).to(flat)


class Together(nn.Module):
    """The mean of what several readers draw."""

    def __init__(self, readers: list[nn.Module]):
        super().__init__()
        self.readers = nn.ModuleList(readers)

    def forward(self, seen: Tensor) -> Tensor:
        return torch.stack([reader(seen) for reader in self.readers]).mean(0)


class ByClass(nn.Module):
    """How likely each class is, given the code, mixes the means of the classes; a reader draws the rest."""

    means: Tensor

    def __init__(self, features: int, means: Tensor, hidden: int):
        super().__init__()
        classes, image = len(means), tuple(means.shape[1:])
        self.classify = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))
        self.pictures = len(image) == 3
        inputs = features + classes
        self.rest = MLPReader((inputs,), image, hidden) if self.pictures else RowReader(inputs, image, hidden)
        self.register_buffer("means", means)

    def forward(self, features: Tensor) -> Tensor:
        likely = self.classify(features).softmax(1)
        mixed = torch.einsum("nc,c...->n...", likely, self.means)
        drawn = self.rest(torch.cat([features, likely], 1))
        if not self.pictures:
            return mixed + drawn
        return (mixed.clamp(0.02, 0.98).logit() + drawn.clamp(1e-4, 1 - 1e-4).logit()).sigmoid()


class Searched(nn.Module):
    """What a reader draws, changed until the encoder makes its code of it, straight through rounding.

    `scale`: the unit in which it is changed. Of pixels that is 1, and none leaves [0, 1].
    """

    def __init__(self, start: Reader, encode: Encode, pull: float, scale: float = 1.0):
        super().__init__()
        self.start, self.encode, self.pull, self.scale = start, encode, pull, scale

    @torch.enable_grad()
    def forward(self, seen: Tensor) -> Tensor:
        first = self.start(seen).detach()
        drawn, labels = first.clone().requires_grad_(), torch.zeros(len(first), dtype=torch.long, device=first.device)
        optimizer = adam([drawn], RATE * self.scale)
        for _ in range(LOOKED):
            missed = (self.encode(drawn, labels) - seen).square().flatten(1).mean(1).sum()
            away = ((drawn - first) / self.scale).square().flatten(1).mean(1).sum()
            optimizer.zero_grad()
            (missed + self.pull * 100 * away).backward()
            optimizer.step()
            with torch.no_grad():
                if drawn.dim() == 4:
                    drawn.clamp_(0, 1)
        return drawn.detach()


def code_reader(
    name: str, spec: Effort, pairs: Pairs, labels: Tensor, encode: Encode, best: Reader | None
) -> Reader | None:
    """The one of this name; None: there is none for such data. `best`: of the readers that there are already."""
    if not pairs.truth.is_floating_point() or labels.dim() != 1:
        return None
    if name == "levels":
        return levels_reader(pairs, spec)
    if name == "prior":
        return prior_reader(pairs, labels, spec)
    return None if best is None else search_reader(best, pairs, encode)


def levels_reader(pairs: Pairs, spec: Effort) -> Before:
    """Several fully connected readers of levels, each from its own start."""
    step = Levels(pairs.seen)
    apart = pairs._replace(seen=step(pairs.seen), held_seen=step(pairs.held_seen))
    made = [reader_of("mlp", spec, apart, None) for _ in range(MEMBERS)]
    return Before(step, Together([one for one in made if isinstance(one, nn.Module)]))


def prior_reader(pairs: Pairs, labels: Tensor, spec: Effort) -> Before:
    """A reader that knows which classes a code is likely of, and what they look like."""
    step = Levels(pairs.seen)
    features, classes = step(pairs.seen), int(labels.max()) + 1
    found = [
        pairs.truth[labels == one].mean(0) if (labels == one).any() else pairs.truth.mean(0) for one in range(classes)
    ]
    reader = ByClass(features.shape[1], torch.stack(found), spec.hidden).to(features)
    # The same standardised features that `fit` shows it.
    standard = (features - features.mean(0)) / features.std(0).clamp_min(1e-6)
    optimizer = adam(reader.classify.parameters(), 3e-3)
    for _ in range(spec.steps):
        pick = torch.randint(len(features), (64,)).to(features.device)
        optimizer.zero_grad()
        cross_entropy(reader.classify(standard[pick]), labels[pick]).backward()
        optimizer.step()
    reader.classify.requires_grad_(False)
    if reader.pictures:
        return Before(step, fit(reader, features, pairs.truth, steps=spec.steps))
    trained = fit(reader, features, pairs.truth, steps=spec.steps, loss=error_of(pairs.truth), decay=DECAY)
    return Before(step, trained)


def search_reader(start: Reader, pairs: Pairs, encode: Encode) -> Searched:
    """The search with the pull that does best on held-out samples."""
    seen, truth = pairs.held_seen[:COMPARED], pairs.held_truth[:COMPARED]
    scale = 1.0 if truth.dim() == 4 else float(pairs.truth.std())
    tried = [Searched(start, encode, pull, scale) for pull in PULLS]
    return max(tried, key=lambda reader: quality(reader(seen), truth))
