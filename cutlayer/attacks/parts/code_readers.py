"""Readers built for codes of few levels: each level by itself, a prior by class, and a search through the encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ...core.guard import Shape
from ...core.stepping import adam
from ...guards.base import Guard
from ...metrics.readers import Before, MLPReader, Reader, fit, picture_quality
from ...metrics.row_readers import Pairs

CODES = ("levels", "prior", "search")
NARROW = 256  # numbers in a message up to which it is taken for a code
MOST_LEVELS = 16  # of one number that are told apart
MEMBERS = 2  # readers whose pictures are averaged
LOOKED, RATE = 40, 0.03  # steps of a search, and how far each goes
PULLS = (0.1, 1.0, 10.0)  # towards the picture it starts from
COMPARED = 64  # held-out codes that a pull is chosen by


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
    """How likely each class is, given the code, mixes the mean pictures of the classes; a reader draws the rest."""

    means: Tensor

    def __init__(self, features: int, means: Tensor, hidden: int):
        super().__init__()
        classes, image = len(means), tuple(means.shape[1:])
        self.classify = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))
        self.rest = MLPReader((features + classes,), image, hidden)
        self.register_buffer("means", means)

    def forward(self, features: Tensor) -> Tensor:
        likely = self.classify(features).softmax(1)
        mixed = torch.einsum("nc,c...->n...", likely, self.means).clamp(0.02, 0.98)
        drawn = self.rest(torch.cat([features, likely], 1)).clamp(1e-4, 1 - 1e-4)
        return (mixed.logit() + drawn.logit()).sigmoid()


class Searched(nn.Module):
    """Pictures that a reader draws, changed until the encoder makes their code of them, straight through rounding."""

    def __init__(self, start: Reader, encode: Callable[[Tensor, Tensor], Tensor], pull: float):
        super().__init__()
        self.start, self.encode, self.pull = start, encode, pull

    @torch.enable_grad()
    def forward(self, seen: Tensor) -> Tensor:
        first = self.start(seen).detach()
        images, labels = (
            first.clone().requires_grad_(),
            torch.zeros(len(first), dtype=torch.long, device=first.device),
        )
        optimizer = adam([images], RATE)
        for _ in range(LOOKED):
            missed = (self.encode(images, labels) - seen).square().mean((*range(1, seen.dim()),)).sum()
            away = (images - first).square().mean((1, 2, 3)).sum()
            optimizer.zero_grad()
            (missed + self.pull * 100 * away).backward()
            optimizer.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        return images.detach()


def levels_reader(pairs: Pairs, hidden: int, steps: int) -> Before:
    """Several fully connected readers of levels, each from its own start."""
    step = Levels(pairs.seen)
    features, image = step(pairs.seen), tuple(pairs.truth.shape[1:])
    made = [
        fit(MLPReader(tuple(features.shape[1:]), image, hidden).to(features), features, pairs.truth, steps=steps)
        for _ in range(MEMBERS)
    ]
    return Before(step, Together(list(made)))


def prior_reader(pairs: Pairs, labels: Tensor, hidden: int, steps: int) -> Before:
    """A reader that knows which classes a code is likely of, and what they look like."""
    step = Levels(pairs.seen)
    features, classes = step(pairs.seen), int(labels.max()) + 1
    found = [
        pairs.truth[labels == one].mean(0) if (labels == one).any() else pairs.truth.mean(0) for one in range(classes)
    ]
    reader = ByClass(features.shape[1], torch.stack(found), hidden).to(features)
    # The same standardised features that `fit` shows it.
    standard = (features - features.mean(0)) / features.std(0).clamp_min(1e-6)
    optimizer = adam(reader.classify.parameters(), 3e-3)
    for _ in range(steps):
        pick = torch.randint(len(features), (64,)).to(features.device)
        optimizer.zero_grad()
        cross_entropy(reader.classify(standard[pick]), labels[pick]).backward()
        optimizer.step()
    reader.classify.requires_grad_(False)
    return Before(step, fit(reader, features, pairs.truth, steps=steps))


def search_reader(start: Reader, pairs: Pairs, encode: Callable[[Tensor, Tensor], Tensor]) -> Searched:
    """The search with the pull that does best on held-out images."""
    seen, truth = pairs.held_seen[:COMPARED], pairs.held_truth[:COMPARED]
    tried = [Searched(start, encode, pull) for pull in PULLS]
    return max(tried, key=lambda reader: picture_quality(reader(seen), truth))
