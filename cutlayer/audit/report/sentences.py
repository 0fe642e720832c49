"""Texts in a report: what was read beside what was written, word by word."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ...core.batch import PAD
from ..rows import Row, picture_key

SHOWN, BEST = 3, 2  # texts of each guard: some of every class, and those that were read best
MOST_WORDS = 60  # of a text; the rest would say no more


class Word(NamedTuple):
    text: str
    right: bool  # it stands at this place in the original


class Sentence(NamedTuple):
    """One private text and what an attacker made of it."""

    number: int
    score: float  # its token accuracy
    read_best: bool
    written: list[str]
    read: list[Word]
    cut: bool  # the text goes on


class Read(NamedTuple):
    """What the strongest attacker of one guard read."""

    row: Row
    sentences: list[Sentence]


def sentences(
    truth: Tensor, rows: Sequence[Row], guesses: Mapping[str, Tensor], words: Sequence[str], order: Sequence[int]
) -> list[Read]:
    """Of each row some texts of every class (`order`), and those read best. Without `words` ids stand for them."""
    return [
        Read(row, _of(truth, row, guesses[picture_key(row)], words, order))
        for row in rows
        if picture_key(row) in guesses
    ]


def _of(truth: Tensor, row: Row, guess: Tensor, words: Sequence[str], order: Sequence[int]) -> list[Sentence]:
    some = [number for number in order if number < len(guess)][:SHOWN]
    best = [number for number, _ in row.get("worst", []) if number not in some][:BEST]
    scores = row["sampled"]["scores"]
    return [_sentence(truth[n], guess[n], words, n, scores[n], n in best) for n in [*some, *best]]


def _sentence(
    truth: Tensor, guess: Tensor, words: Sequence[str], number: int, score: float, read_best: bool
) -> Sentence:
    """Up to where the original ends: what was written into its padding is not shown."""
    long = int((truth != PAD).nonzero().max()) + 1 if (truth != PAD).any() else 0
    wanted, said = truth[:long].tolist(), guess[:long].tolist()
    read = [Word(_shown(two, words), one == two) for one, two in zip(wanted, said, strict=True)]
    written = [_shown(one, words) for one in wanted]
    return Sentence(number, score, read_best, written[:MOST_WORDS], read[:MOST_WORDS], long > MOST_WORDS)


def _shown(token: int, words: Sequence[str]) -> str:
    if token == PAD:
        return "·"
    return words[token] if token < len(words) else str(token)
