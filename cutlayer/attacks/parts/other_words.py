"""Texts in which some words were exchanged: who holds the client's head can have any word sent, rare ones, too."""

import torch
from torch import Tensor

from ...core.batch import PAD
from ..base import Knowledge

SHARE = 0.5  # of a text's tokens that are exchanged: the others keep it like a text


def with_other_words(texts: Tensor, vocabulary: int, share: float = SHARE) -> Tensor:
    """The same texts with a share of their tokens replaced by all ids of the vocabulary in turn, in random order."""
    there = (texts != PAD) & (torch.rand(texts.shape).to(texts.device) < share)
    count = int(there.sum())
    rounds = -(-count // max(1, vocabulary - 1))
    ids = torch.cat([1 + torch.randperm(vocabulary - 1) for _ in range(rounds)]) if rounds else torch.zeros(0)
    changed = texts.clone()
    changed[there] = ids[:count].to(texts)
    return changed


def ids_of(knowledge: Knowledge) -> int:
    """How many token ids the client's head reads: a white box has its embedding, others know those they have seen."""
    assert knowledge.aux is not None
    box = knowledge.encode if knowledge.encode is not None else knowledge.head
    return max(getattr(box, "ids", 0), int(knowledge.aux.max()) + 1)
