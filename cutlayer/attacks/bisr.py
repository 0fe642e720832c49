"""BiSR: a text from both sides of the server, by what the client sent forward and by what it sent back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..core.guard import Shape
from ..core.message import Kind, Message
from ..guards.base import Guard
from ..metrics.readers import best_reader
from ..metrics.row_readers import Pairs
from .base import Attack, Attacker, Knowledge, smashed
from .parts.exchanges import as_it_answered
from .parts.in_context import best_in_context
from .parts.keyed import WHITE, Keyed, made
from .parts.label_gradient import SURE, next_tokens, text_of
from .parts.pictures import READERS, quality, reader_of, refuse_strange

WEIGHTS = ("client", "published")
AT_ONCE = 32  # texts that are searched together
NEAREST = 3  # words of the search that are tried in their text


@dataclass(frozen=True, repr=False)
class BiSR(Keyed):
    """Texts from both sides: a reader of z, a search for vectors that the head would send as z, and du's next words.

    Bidirectional reconstruction (Chen et al. 2024). Forward, a reader trained on auxiliary texts makes a first guess,
    from which word vectors are moved until the client's own head sends what was observed (cosine); of the words
    nearest to these and the reader's, the one that explains its row best is kept. Backward, where the labels are the
    text a token on, the gradient du names each next word to who knows the tail (as TokenGradients). What du names
    surely counts; where a text has one class there is no backward side, and forward alone decides.
    `weights="published"` knows head and tail as they were before the training, in the file that the client began
    with, as in the paper; "client" knows them as they are.
    """

    steps: int = 400  # of the readers
    input_steps: int = 200  # of the search
    rate: float = 0.1  # of it, in units of the vectors' own spread
    width: int = 64
    hidden: int = 1024
    readers: tuple[str, ...] = READERS
    weights: str = "client"
    most_images: int | None = 64  # type: ignore[misc]
    inputs: ClassVar[tuple[str, ...]] = ("texts",)
    whole_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.steps, self.width, self.hidden) < 1 or self.input_steps < 0 or not self.rate > 0:
            raise ValueError(
                f"{self}: steps, width and hidden are whole numbers from 1 up, input_steps from 0, rate is above 0"
            )
        refuse_strange(self.readers)
        if self.weights not in WEIGHTS:
            raise ValueError(f"BiSR: weights is one of {', '.join(WEIGHTS)}; got {self.weights!r}")
        if self.weights == "published" and self.keys not in WHITE:
            raise ValueError("BiSR: with published weights the guard's key is not looked for: leave out keys")

    @classmethod
    def sized(cls, budget: str) -> Self:
        if budget == "paper":
            return cls(steps=4000, input_steps=600, width=128, hidden=2048)
        return cls(steps=150, input_steps=100, most_images=32) if budget == "quick" else cls()

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        if self.weights == "published":
            return (*self.told, "published", "undo", "body")
        return (*super().needs, "body", "tail")

    @property
    def white_box(self) -> bool:
        return self.weights == "client" and super().white_box

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        return super().against(guard, shape) if self.weights == "client" else [self]

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        if knowledge.published is not None:
            knowledge = replace(knowledge, encode=knowledge.published.encode, tail=knowledge.published.tail)
        return _TwoSided(self, knowledge, seed)


class _TwoSided(Attacker):
    def __init__(self, spec: BiSR, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None and knowledge.body is not None and knowledge.tail is not None
        own = made(spec.keys, knowledge, seed)
        texts, held = knowledge.aux[own.rows], knowledge.aux[own.held_rows]
        self.spec, self.undo = spec, knowledge.undo
        self.read, self.best, self.scores = best_reader(
            spec, spec.readers, own.seen, seed,
            lambda name: reader_of(name, spec, Pairs(own.seen, texts, own.held, held), knowledge.undo),
            lambda reader: quality(reader(own.held), held),
        )  # fmt: skip
        # A copy of a guard with another key sends other rows, so there is nothing to move vectors towards.
        self.box: Any = knowledge.encode if spec.keys in WHITE else None
        if getattr(self.box, "table", None) is None:
            self.box = None
        self.body, self.tail = as_it_answered(knowledge.body), as_it_answered(knowledge.tail)
        self.found: dict[str, object] = {} if spec.keys != "recovered" else {"key_empty": own.key_empty}

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        seen = smashed(messages)
        guess = self.read(seen)
        if self.box is not None:
            guess = torch.cat(
                [self._searched(*pair) for pair in zip(seen.split(AT_ONCE), guess.split(AT_ONCE), strict=True)]
            )
        if not any(message.kind is Kind.BACKWARD and message["du"].dim() == 3 for message in messages):
            return guess
        named = next_tokens(self.body, self.tail, messages)
        if named.labels.dim() != 2:
            return guess
        self.found["match"] = round(float(named.match[named.match > SURE].mean()), 4)
        return text_of(named, guess)

    def remarks(self) -> dict[str, object]:
        return {
            "reader": self.best,
            "readers": {name: round(score, 4) for name, score in self.scores.items()},
            **self.found,
        }

    def _searched(self, seen: Tensor, guess: Tensor) -> Tensor:
        """Texts whose words' vectors, moved from those of the guess, would be sent as what was seen."""
        table = self.box.table.weight.detach()
        vectors = table[guess].clone().requires_grad_()
        optimizer = torch.optim.Adam([vectors], self.spec.rate * float(table.std()))
        with torch.enable_grad():
            for _ in range(self.spec.input_steps):
                loss = _apart(self.box.of_vectors(vectors, guess), seen).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        words = torch.cdist(vectors.detach().flatten(0, 1), table).topk(NEAREST, 1, largest=False).indices
        return best_in_context(guess, words.unflatten(0, guess.shape), self._error(seen))

    def _error(self, seen: Tensor) -> Callable[[Tensor], Tensor]:
        @torch.no_grad()
        def error(texts: Tensor) -> Tensor:
            sent = self.box(texts, texts.new_zeros(len(texts)))
            return _apart(sent, seen).expand(texts.shape)

        return error


def _apart(sent: Tensor, seen: Tensor) -> Tensor:
    """1 - cosine, of each token where a message has a row for each, else of the message."""
    if sent.dim() == 3:
        return 1 - cosine_similarity(sent, seen, dim=2)
    return 1 - cosine_similarity(sent.flatten(1), seen.flatten(1), dim=1)[:, None]
