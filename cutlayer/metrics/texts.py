"""How much of a text was read: figures on rows of token ids (N, length), one value per text, in float64.

Padding stands at the end and is no word: it earns nothing where the truth has it, and is left out of what an attacker
wrote. A text without a word scores 0.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.batch import PAD
from .bootstrap import tail

SPECIAL = re.compile(r"\[[^\s\]]+\]|<[^\s>]+>")  # [UNK], <s>: no words
RARE = 0.05  # share of all written tokens that the rarest ids make up; these stand for names where words are unknown

FIGURES = ("token_accuracy", "token_p90", "rouge_l", "names_found")


def token_accuracy(truth: Tensor, guess: Tensor) -> Tensor:
    """Share of a text's tokens that stand in the guess at their own place."""
    _same_shape(truth, guess)
    real = truth != PAD
    return ((truth == guess) & real).sum(1).double() / real.sum(1).clamp_min(1)


def rouge_l(truth: Tensor, guess: Tensor) -> Tensor:
    """ROUGE-L (Lin 2004), F1: the longest common subsequence, so that a word more or less shifts nothing."""
    _same_shape(truth, guess)
    common = _longest_common(truth, guess)
    written = [(one != PAD).sum(1) for one in (truth, guess)]
    return 2 * common / (written[0] + written[1]).clamp_min(1)


def _longest_common(truth: Tensor, guess: Tensor) -> Tensor:
    best = torch.zeros(len(truth), guess.shape[1] + 1, dtype=torch.float64, device=truth.device)
    for place in range(truth.shape[1]):
        token = truth[:, place, None]
        found = (guess == token) & (token != PAD)
        longer = torch.where(found, best[:, :-1] + 1, best[:, 1:])
        best[:, 1:] = longer.cummax(1).values
    return best[:, -1]


class Names(NamedTuple):
    """The share of its names and numbers that was read of each text that has any, and which texts have."""

    found: Tensor
    there: Tensor


def names(truth: Tensor, guess: Tensor, striking: Tensor) -> Names:
    """Names and numbers read to the letter, at their own place. `striking` says of each id whether it is one.

    (Anywhere in a text would count what an attacker writes at random: of few rare words one always fits.)
    """
    _same_shape(truth, guess)
    wanted = striking.to(truth.device)[truth] & (truth != PAD)
    count = wanted.sum(1)
    there = count > 0
    return Names(((truth == guess) & wanted).sum(1).double()[there] / count[there], there)


def striking_tokens(vocabulary: int, known: Tensor, words: Sequence[str] | None = None) -> Tensor:
    """For each id whether it is a name or a number: its word has a capital or a digit.

    Where words are not known, or all are lowered, a name cannot be told by its look: then rare ids stand for names,
    those that together make up a twentieth of all that is written in the texts `known`, and those that never occur.
    """
    counts = known[known != PAD].flatten().cpu().bincount(minlength=vocabulary)[:vocabulary].double()
    order = counts.argsort(stable=True)
    rare = torch.zeros(vocabulary, dtype=torch.bool)
    rare[order[counts[order].cumsum(0) <= RARE * counts.sum()]] = True
    if words is not None:
        spoken = ["" if SPECIAL.fullmatch(word) else word for word in words[:vocabulary]]
        looks = [(any(map(str.isupper, word)), any(map(str.isdigit, word))) for word in spoken]
        capital, digit = torch.tensor(looks, dtype=torch.bool).T
        marked = torch.zeros(vocabulary, dtype=torch.bool)
        marked[: len(looks)] = capital | digit
        rare = marked if capital.any() else marked | rare
    rare[PAD] = False
    return rare


@torch.no_grad()
def scores(truth: Tensor, guess: Tensor, striking: Tensor) -> dict[str, float]:
    """The mean of every figure over all texts, of names over those that have some; 0 where none has."""
    accuracy, named = token_accuracy(truth, guess), names(truth, guess, striking)
    return {
        "token_accuracy": float(accuracy.mean()),
        "token_p90": tail(accuracy),
        "rouge_l": float(rouge_l(truth, guess).mean()),
        "names_found": float(named.found.mean()) if len(named.found) else 0.0,
    }


def _same_shape(truth: Tensor, guess: Tensor) -> None:
    if truth.shape != guess.shape or truth.dim() != 2:
        raise ValueError(
            f"texts are rows of token ids, and a reconstruction has the shape of its truth, {tuple(truth.shape)}; "
            f"got {tuple(guess.shape)}"
        )
