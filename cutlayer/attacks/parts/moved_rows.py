"""What weights that change hands tell: words by the rows of the embedding that moved, and a batch's gradient.

A table of words is a lookup: a step changes the rows of the words that were looked up, and no others. Whoever hands
weights on from client to client, or merges them, sees the table before and after a turn. No guard of the cut is in
the way of it; noise on gradients is (`DPSGD`), and a table that does not travel: frozen, or the client's own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.state import State
from ..base import Turn

HEAD = "head."  # of a client's network
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


def gradients_told(turn: Turn, names: Sequence[str], table: str) -> dict[str, Tensor]:
    """The gradient of each of a head's weights that travels, but for a factor.

    Where a momentum travels, it is what was added to it; else what the weights moved by. Optimizers number the
    weights that train, and a head's come first.
    """
    there = [name for name in names if f"net.{HEAD}{name}" in turn.after]
    found, share = dict[str, Tensor](), None
    # The table first: most of its rows only fade, which says how fast all of them do.
    for place, name in sorted(enumerate(there), key=lambda one: one[1] != table):
        was, now = (_momentum(state, place) for state in (turn.before, turn.after))
        if now is None:
            found[name] = turn.before[f"net.{HEAD}{name}"] - turn.after[f"net.{HEAD}{name}"]
        elif was is None:
            found[name] = now
        else:
            share = fading_share(was, now) if share is None else share
            found[name] = now - share * was
    if table in found:
        moved = moved_rows(turn.before, turn.after, f"net.{HEAD}{table}")
        assert moved is not None
        rows = torch.arange(len(found[table]), device=found[table].device)
        found[table][~torch.isin(rows, moved)] = 0.0  # what is left there is rounding
    return found


def _momentum(state: State, place: int) -> Tensor | None:
    return next((state[key] for name in MOMENTS if (key := f"optimizer.{place}.{name}") in state), None)


def commonest_words(texts: Tensor, count: int, ignored: Tensor) -> Tensor:
    """The floor, which needs no weights: as many words, those that auxiliary texts have most often. The
    `ignored` ids are no words."""
    words = texts[~torch.isin(texts, ignored)].flatten().bincount()
    return words.argsort(descending=True, stable=True)[:count]


def told(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Of the words that were named, how many are there (precision), and of those that are there, how many were."""
    right = float(torch.isin(found, truth).sum())
    return {"precision": right / max(1, len(found)), "recall": right / max(1, len(truth))}


def _rows(changed: Tensor) -> Tensor:
    return changed.flatten(1).any(1)


def fading_share(was: Tensor, now: Tensor) -> Tensor:
    """By what a sum that fades is multiplied in each step: most rows of a table only faded, by the same share."""
    known = was != 0
    return (now[known] / was[known]).median() if known.any() else now.new_tensor(0.0)


def _fed(was: Tensor, now: Tensor) -> Tensor:
    """Rows of a fading sum that something was added to."""
    faded = fading_share(was, now) * was
    apart, size = (now - faded).flatten(1).abs().amax(1), faded.flatten(1).abs().amax(1)
    return apart > EXACT * size
