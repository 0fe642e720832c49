"""The commonest words: what can be written of a text without a look at it."""

import torch
from torch import Tensor

from ..core.batch import PAD


def commonest(texts: Tensor) -> Tensor:
    """(length,): the commonest word of each place, as if no text ended before it."""
    written = texts[texts != PAD].flatten()
    overall = int(written.bincount().argmax()) if len(written) else PAD
    found = []
    for column in texts.T:
        there = column[column != PAD]
        found.append(int(there.bincount().argmax()) if len(there) else overall)
    return torch.tensor(found).to(texts)


def commonest_of_class(texts: Tensor, labels: Tensor, classes: int, wanted: Tensor) -> Tensor:
    """For each label wanted the commonest words of the texts of its class."""
    each = [commonest(texts[labels == c]) if (labels == c).any() else commonest(texts) for c in range(classes)]
    return torch.stack(each)[wanted.to(texts.device)]
