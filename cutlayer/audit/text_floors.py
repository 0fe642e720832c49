"""Texts that follow from no message: the commonest words of every place, and what a language prior would write."""

import torch
from torch import Tensor

from ..core.batch import PAD
from ..metrics.common_words import commonest as commonest
from ..metrics.common_words import commonest_of_class as commonest_of_class

COMMON = 256  # words the prior writes with: it would never choose a rarer one
CHUNK = 32  # texts that are compared with all others at once


def likeliest(texts: Tensor) -> Tensor:
    """(length,): the likeliest text of a bigram model of these, with add-one smoothing (Viterbi)."""
    words = texts[texts != PAD].bincount().argsort(descending=True, stable=True)[:COMMON]
    number = torch.full((int(texts.max()) + 1,), -1, device=texts.device)
    number[words] = torch.arange(len(words), device=texts.device)
    number[PAD] = -1
    rows = number[texts]
    first = 1.0 + rows[:, 0][rows[:, 0] >= 0].bincount(minlength=len(words)).double()
    before, after = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    both = (before >= 0) & (after >= 0)
    pairs = (before[both] * len(words) + after[both]).bincount(minlength=len(words) ** 2)
    follows = 1.0 + pairs.reshape(len(words), len(words)).double()
    follows = (follows / follows.sum(1, keepdim=True)).log()
    best, came_from = (first / first.sum()).log(), []
    for _ in range(texts.shape[1] - 1):
        best, origin = (best[:, None] + follows).max(0)
        came_from.append(origin)
    place = best.argmax()
    written = [place]
    for origin in reversed(came_from):
        place = origin[place]
        written.append(place)
    return words[torch.stack(written[::-1])]


def nearest(truth: Tensor, aux: Tensor) -> Tensor:
    """For each text the auxiliary one that has most words in common with it, place by place. Only the judge can pick
    it, so it is no blind guess."""
    alike = [((some[:, None] == aux) & (some[:, None] != PAD)).sum(2) for some in truth.split(CHUNK)]
    return aux[torch.cat(alike).argmax(1)]
