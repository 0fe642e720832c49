"""Texts for tests: a small grammar whose sentences tell two topics apart, and a network cut between layers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.data.base import Loaded, Parts, Samples
from cutlayer.nets.base import Net
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.plan import Plan

VOCABULARY, LENGTH = 40, 12


def sentences(count: int, seed: int = 0, vocabulary: int = VOCABULARY, length: int = LENGTH) -> Samples:
    """A word hangs on the word before it and on the topic; some words are rare, and no two texts are equally long."""
    draw = torch.Generator().manual_seed(seed)
    grammar = torch.Generator().manual_seed(1234)  # of the language, whoever writes
    ids = vocabulary - 1
    likely = torch.rand(2, ids, ids, generator=grammar) ** 8 / torch.arange(1, ids + 1)
    likely[0, :, : ids // 4] *= 3
    y = torch.arange(count) % 2
    words = torch.multinomial(likely[y].mean(1), 1, generator=draw)
    for _ in range(length - 1):
        words = torch.cat([words, torch.multinomial(likely[y, words[:, -1]], 1, generator=draw)], 1)
    ends = torch.randint(length // 2, length + 1, (count, 1), generator=draw)
    x = torch.where(torch.arange(length) < ends, words + 1, 0)
    return Samples(x, y, {"long": (ends[:, 0] > length * 3 // 4).long()}, vocabulary=vocabulary)


def texts(count: int = 240) -> Loaded:
    return Loaded(sentences(count, 1), sentences(80, 2), ("no", "yes"))


def text_parts(private: int = 64, aux: int = 160) -> Parts:
    return Parts(sentences(private, 1), sentences(12, 2), sentences(aux, 3), sentences(40, 4))


def next_words(samples: Samples) -> Samples:
    """The same texts, of which every token is to be named by those before it; after the last comes padding."""
    return replace(samples, y=torch.cat([samples.x[:, 1:], torch.zeros_like(samples.x[:, :1])], 1), s={})


def next_word_parts() -> Parts:
    known = text_parts()
    return Parts(*(next_words(some) for some in (known.private, known.val, known.aux, known.test)))


class Block(nn.Module):
    """Attention over all tokens and a small MLP, each added to what came in."""

    def __init__(self, width: int):
        super().__init__()
        self.ask = nn.Linear(width, 3 * width)
        self.bend = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, z: Tensor) -> Tensor:
        q, k, v = self.ask(z).chunk(3, 2)
        z = z + (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(2) @ v
        return z + self.bend(z)


class Embedded(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.1 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x.long()) + self.places


class Mean(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.mean(1)


@dataclass(frozen=True, repr=False)
class TextNet(Net):
    """embedding, `at` blocks | 2 - `at` blocks, mean over tokens | linear"""

    at: int = 0
    width: int = 16
    vocabulary: int = VOCABULARY

    def check(self, shape):
        pass

    def head(self, shape):
        blocks = (Block(self.width) for _ in range(self.at))
        return nn.Sequential(Embedded(self.vocabulary, shape[0], self.width), *blocks)

    def body(self, shape):
        return nn.Sequential(*(Block(self.width) for _ in range(2 - self.at)), Mean())

    def tail(self, shape, classes):
        return nn.Linear(self.width, classes)


def text_plan(**changes) -> Plan:
    fields = {
        "net": TextNet(), "client_optimizer": Adam(lr=3e-3), "server_optimizer": Adam(lr=3e-3), "batch_size": 16,
        "epochs": 3, "private_seed": 7, "aux_samples": 120,
    }  # fmt: skip
    return Plan(**{**fields, **changes})


def audited(plan: Plan, images: int = 40, loaded: Loaded | None = None, **changes):
    return audit(AuditSpec(plan, images=images, alone=False, **changes), loaded or texts())
