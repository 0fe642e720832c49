"""Which words a client has, by the rows of the embedding that moved while it had the weights.

A table of words is a lookup: a step changes the rows of the words that were looked up, and no others. Whoever hands
weights on from client to client, or merges them, sees the table before and after a turn. No guard of the cut is in
the way of it; noise on gradients is (`DPSGD`), and a table that does not travel: frozen, or the client's own.
"""

import torch
from torch import Tensor

from ..core.state import State

MOMENTS = ("exp_avg", "momentum_buffer")  # what optimizers carry on of past gradients, as a sum that fades
EXACT = 1e-4  # of a row's own size: what is left of rounding where it has only faded


def moved_rows(before: State, after: State, table: str) -> Tensor | None:
    """Ids whose rows of `table` were looked up, as far as weights and optimizer tell; None: it does not travel.

    With a momentum that lives on, rows of earlier turns move on too. Where it is handed on with the weights, the rows
    that were looked up are those where it did more than fade.
    """
    if table not in before or table not in after:
        return None
    moved = _rows(before[table] != after[table])
    for name, now in after.items():
        if name.rpartition(".")[2] in MOMENTS and now.shape == after[table].shape:
            was = before.get(name)
            return (_rows(now != 0) if was is None else _fed(was, now)).nonzero().flatten()
    return moved.nonzero().flatten()


def commonest_words(texts: Tensor, count: int, ignored: int) -> Tensor:
    """The floor, which needs no weights: as many words, those that auxiliary texts have most often. The first
    `ignored` ids are no words."""
    words = texts[texts >= ignored].flatten().bincount()
    return words.argsort(descending=True, stable=True)[:count]


def told(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Of the words that were named, how many are there (precision), and of those that are there, how many were."""
    right = float(torch.isin(found, truth).sum())
    return {"precision": right / max(1, len(found)), "recall": right / max(1, len(truth))}


def _rows(changed: Tensor) -> Tensor:
    return changed.flatten(1).any(1)


def _fed(was: Tensor, now: Tensor) -> Tensor:
    """Rows of a fading sum that something was added to. Most rows only faded, by the same share."""
    known = was != 0
    share = (now[known] / was[known]).median() if known.any() else now.new_tensor(0.0)
    faded = share * was
    apart, size = (now - faded).flatten(1).abs().amax(1), faded.flatten(1).abs().amax(1)
    return apart > EXACT * size
