"""Dictionary: every word is sent by the client's own head, once at every place, and messages are looked up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.message import Message
from ..metrics.text_readers import evened
from .base import Attacker, Knowledge, smashed
from .parts.in_context import best_in_context
from .parts.keyed import Keyed, made
from .parts.other_words import ids_of

AT_ONCE = 256  # texts of the dictionary that are compared at once
CANDIDATES = 16  # words for each place that are tried in the text around it


@dataclass(frozen=True, repr=False)
class Dictionary(Keyed):
    """White box, texts: the word whose own row, sent at the same place, is nearest to each row observed.

    Where the cut lies behind the embedding this is the nearest embedding, and a lookup: a row hangs on its word and
    place alone. Deeper, a row hangs on the text around it, too: distances are taken in units of how much auxiliary
    rows of one word vary, and `rounds` more try the nearest sixteen words of each place in the text found so far.
    Messages that are no row for each token are brought back by the guard's public map; where there is none, there is
    nothing to look up.
    """

    rounds: int = 1
    inputs: ClassVar[tuple[str, ...]] = ("texts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rounds, int) or self.rounds < 0:
            raise ValueError(f"{self}: rounds is a whole number from 0 up")

    @property
    def white_box(self) -> bool:
        """It compares rows one by one, so what it fails to find says nothing of a guard that mixes them."""
        return False

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _LookingUp(self, knowledge, seed)


class _LookingUp(Attacker):
    def __init__(self, spec: Dictionary, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None
        own = made(spec.keys, knowledge, seed)
        self.encode: Callable[[Tensor, Tensor], Tensor] = own.encode
        self.undo: nn.Module | None = knowledge.undo
        self.rounds, self.ids, self.length = spec.rounds, ids_of(knowledge), knowledge.aux.shape[1]
        self.found = {} if spec.keys != "recovered" else {"key_empty": own.key_empty}
        lines, texts = self._lifted(own.seen), knowledge.aux[own.rows]
        shape = tuple(lines.shape[1:])
        if len(shape) != 2 or shape[0] != self.length:
            raise ValueError(
                f"{spec} looks up a row for each of the {self.length} tokens, and a message behind this guard has "
                f"the shape {shape}: leave it out, Decoder reads these"
            )
        self.even = evened(lines, texts).to(lines)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        seen = self._lines(smashed(messages))
        words = self._nearest(seen)
        best = words[..., 0]
        for _ in range(self.rounds):
            best = best_in_context(best, words, lambda texts: self._error(seen, texts))
        return best

    def remarks(self) -> dict[str, object]:
        return dict(self.found)

    @torch.no_grad()
    def _lifted(self, seen: Tensor) -> Tensor:
        return seen if self.undo is None else self.undo(seen)

    def _lines(self, seen: Tensor) -> Tensor:
        return self._lifted(seen) @ self.even

    @torch.no_grad()
    def _sent(self, texts: Tensor) -> Tensor:
        return self._lines(self.encode(texts, texts.new_zeros(len(texts))))

    def _nearest(self, seen: Tensor) -> Tensor:
        """(texts, length, candidates): the words whose rows are nearest, the nearest first."""
        places, count = torch.arange(self.length, device=seen.device), min(CANDIDATES, self.ids)
        far = seen.new_full((self.length, len(seen), count), torch.inf)
        words = torch.zeros_like(far, dtype=torch.long)
        for some in torch.arange(self.ids, device=seen.device).split(AT_ONCE):
            # Text number i has the word i at the first place, i + 1 at the second: each word stands once at each.
            texts = (some[:, None] + places) % self.ids
            distance = torch.cdist(seen.transpose(0, 1), self._sent(texts).transpose(0, 1)).nan_to_num(torch.inf)
            together = torch.cat([far, distance], 2)
            named = torch.cat([words, texts.T[:, None].expand(-1, len(seen), -1)], 2)
            far, pick = together.topk(count, 2, largest=False)
            words = named.gather(2, pick)
        return words.transpose(0, 1)

    def _error(self, seen: Tensor, texts: Tensor) -> Tensor:
        return (self._sent(texts) - seen).square().sum(2)
