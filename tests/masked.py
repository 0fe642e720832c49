"""A small encoder of padded texts, cut with a mask beside z; and texts for it."""

from dataclasses import dataclass

import torch
from torch import nn

from cutlayer.core.batch import Batch
from cutlayer.core.features import Features
from cutlayer.data.base import Parts, Samples
from cutlayer.nets.base import Net
from cutlayer.training.plan.plan import Task

WORDS, LENGTH, WIDTH = 11, 7, 8
TEXTS = Task((LENGTH,), 3, {"odd": 2}, WORDS)


@dataclass(frozen=True, repr=False)
class MaskedNet(Net):
    """embedding | attention among the words that are there | the mean of these"""

    pad: str = "mask"

    def in_tokens(self, shape):
        return True

    def check(self, shape):
        if len(shape) != 1:
            raise ValueError(f"MaskedNet reads token ids; got {shape}")

    def head(self, shape):
        return _Head(self.pad == "mask")

    def body(self, shape):
        return _Body()

    def tail(self, shape, classes):
        return _Tail(classes)


class _Head(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.words, self.masks = nn.Embedding(WORDS, WIDTH), masks

    def forward(self, x):
        ids = x.long()
        z = self.words(ids)
        return Features(z, {"mask": ids != 0}) if self.masks else z


class _Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, z, mask=None):
        scores = self.query(z) @ z.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], -1e9)
        return z + scores.softmax(-1) @ self.value(z)


class _Tail(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classify = nn.Linear(WIDTH, classes)

    def forward(self, u, mask=None):
        weight = torch.ones(u.shape[:2]) if mask is None else mask.to(u)
        return self.classify((u * weight[..., None]).sum(1) / weight.sum(1, keepdim=True).clamp(min=1))


def texts(count, seed=0):
    """(ids, classes): a word of its class among others, and padding behind."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % TEXTS.classes
    x = torch.randint(1 + TEXTS.classes, WORDS, (count, LENGTH), generator=draw)
    x[:, 0] = 1 + y
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=draw)
    return torch.where(torch.arange(LENGTH) < lengths, x, 0), y


def batches(count, size=6, seed=0):
    pairs = [texts(size, seed + number) for number in range(count)]
    return [Batch(x, y, {"odd": y % 2}, seed=number) for number, (x, y) in enumerate(pairs)]


def text_parts(private=36):
    """Private, validation, auxiliary and test texts."""
    counts = (private, 12, 24, 12)
    pairs = [texts(count, 100 + place) for place, count in enumerate(counts)]
    return Parts(*(Samples(x, y, {"odd": y % 2}, vocabulary=WORDS) for x, y in pairs))
