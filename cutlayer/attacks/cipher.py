"""Cipher: the embedding cut as a substitution cipher, broken by how words are used in other texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ..core.message import Message
from .base import Attack, Attacker, Knowledge, smashed
from .parts.cipher_key import read_symbols, symbols, words_of

MOST_ROWS = 131_072  # that are studied: more hardly tell more
KINDS = 4  # times as many symbols as the attacker's texts have words: more are no words


@dataclass(frozen=True, repr=False)
class Cipher(Attack):
    """Texts without the client's head: rows that repeat are one word, and how they are used tells which.

    At the embedding a row hangs on its word and place alone, so a table that nobody knows is a substitution cipher.
    Equal rows are made out as symbols; then symbols and the words of auxiliary texts are matched by how often they
    are written and next to which others. Up to `words` of the commonest are told so, by up to `anchors` neighbours.
    Behind attention rows do not repeat, and the attack says so.
    """

    rounds: int = 8
    words: int = 2000
    anchors: int = 400
    inputs: ClassVar[tuple[str, ...]] = ("texts",)
    needs: ClassVar[tuple[str, ...]] = ("aux", "observed", "undo")

    def __post_init__(self) -> None:
        if min(self.rounds, self.words, self.anchors) < 1:
            raise ValueError(f"{self}: rounds, words and anchors are whole numbers from 1 up")

    @classmethod
    def sized(cls, budget: str) -> Self:
        return cls(words=1000, anchors=200) if budget == "quick" else cls()

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Deciphering(self, knowledge)


class _Deciphering(Attacker):
    def __init__(self, spec: Cipher, knowledge: Knowledge):
        assert knowledge.aux is not None and knowledge.observed is not None
        self.undo: nn.Module | None = knowledge.undo
        lines, length = self._lines(smashed(knowledge.observed)), knowledge.aux.shape[1]
        if lines.dim() != 3 or lines.shape[1] != length:
            raise ValueError(
                f"{spec} reads a row for each of the {length} tokens, and a message behind this guard has the shape "
                f"{tuple(lines.shape[1:])}: leave it out, Decoder reads these"
            )
        lines = lines[: max(2, MOST_ROWS // length)]
        told, self.looks, self.places = symbols(lines, KINDS * len(knowledge.aux.unique()))
        self.key = words_of(told, knowledge.aux, spec.words, spec.anchors, spec.rounds)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.key[read_symbols(self._lines(smashed(messages)), self.looks, self.places)]

    @torch.no_grad()
    def _lines(self, seen: Tensor) -> Tensor:
        return seen if self.undo is None else self.undo(seen)
