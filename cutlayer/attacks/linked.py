"""Messages of one sample from several epochs, read together: noise averages out, bits add up, groups come apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import torch
from torch import Tensor

from ..core.guard import Shape
from ..core.message import Message
from ..guards.base import Guard, NoGuard
from ..metrics.readers import Chosen, Reader, best_reader
from ..metrics.row_readers import Pairs
from .base import EVERY, Attack, Attacker, Knowledge, smashed
from .parts.code_readers import CODES, code_reader, is_code
from .parts.linking import Link, shared_rows, taken_apart
from .parts.pictures import READERS, linear_error, quality, reader_of, refuse_strange

LINKS = ("neighbours", "order")
LEAST_HELD = 16  # own images by which readers are compared
MANY, MOST_COPIES = 2048, 4  # own images: where there are fewer, each passes several times, and is drawn anew
MOST_NUMBERS = 2**28  # of all its own messages that it keeps at a time
NARROW = 256  # numbers in a message up to which several of them are read next to each other
DAMPINGS = (0.01, 0.1, 1.0)  # where samples share rows: how much of what hardly comes apart is left out


@dataclass(frozen=True, repr=False)
class Linked(Attack):
    """White-box reader of several epochs: links the messages of one sample, and reads them together.

    A guard that draws anew (noise, random bits, other groups) hides in one message what several of them show. `link`
    says how they are found: "neighbours", by what they look like; "order", by being told which sample every row is,
    which no server is (batches are drawn from the client's secret seed), so that such a row is a ceiling. Not said:
    both, against guards that draw anew. It knows the head as it was at the end of each of the last `epochs`. Messages
    are read as their mean, or, `beside`, next to each other: codes of heads that differ have no mean. Codes meet the
    readers that `Decoder` has for them, too; "search" then looks for what all encoders make their codes of.
    """

    link: str = EVERY
    epochs: int = 6  # of the training, the last ones, that are read beside the message itself
    steps: int = 400
    width: int = 64
    hidden: int = 1024
    readers: tuple[str, ...] = READERS
    beside: bool = False

    def __post_init__(self) -> None:
        if self.link not in (*LINKS, EVERY):
            raise ValueError(f"link is one of {', '.join(map(repr, LINKS))}; got {self.link!r}")
        if min(self.epochs, self.steps, self.width, self.hidden) < 1:
            raise ValueError(f"{self}: epochs, steps, width and hidden are whole numbers from 1 up")
        refuse_strange(self.readers, (*READERS, *CODES))
        if not self.beside and (strange := set(self.readers) & set(CODES)):
            raise ValueError(f"{', '.join(sorted(strange))} read codes, and their mean is none: take beside=True")

    @classmethod
    def sized(cls, budget: str) -> Self:
        if budget == "paper":
            return cls(epochs=20, steps=4000, width=128, hidden=2048)
        return cls(epochs=3, steps=150) if budget == "quick" else cls()

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        told = ("aux", "aux_labels", "encode", "undo", "passes")
        return (*told, "order") if self.link == "order" else told

    @property
    def each_sample(self) -> bool:  # type: ignore[override]
        return self.link == "order"

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        """What a guard draws once, or does not draw, is in every message alike: against it there is nothing to add to
        one that reads a single message. Asked for by its link, it is tried all the same."""
        if guard == NoGuard():
            return [self.base()]
        if self.link != EVERY:
            return [self]
        sent = guard.out_shape(shape)
        beside = self.beside or (sent != shape and prod(sent) <= NARROW)
        more = CODES if beside and self.readers == READERS and is_code(guard, shape) else ()
        met = replace(self, beside=beside, readers=(*self.readers, *more))
        return [replace(met, link=link) for link in LINKS] if guard.draws_anew else []

    def base(self) -> Self:
        plain = tuple(name for name in self.readers if name not in CODES)
        return replace(self, link=EVERY, beside=False, readers=plain or READERS)

    def ceiling(self, guard: Guard) -> bool:
        return self.link == "order"

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Linking(self, knowledge, seed)


class _Linking(Attacker):
    """It learns from messages of its own, in passes and orders of its own, linked as the victim's will be."""

    def __init__(self, spec: Linked, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None and knowledge.aux_labels is not None and knowledge.passes is not None
        assert knowledge.encode is not None
        recorded = list(knowledge.passes)[-spec.epochs :]
        if not recorded:
            raise ValueError(f"{spec} reads several epochs, of which none was recorded")
        self.spec = spec
        self.theirs = [smashed(one.messages) for one in recorded]
        count = max(MANY, MOST_NUMBERS // (self.theirs[0][0].numel() * (len(recorded) + 1)))
        own_images, own_labels = knowledge.aux[:count], knowledge.aux_labels[:count]
        held = min(max(LEAST_HELD, len(own_images) // 10), len(own_images) // 2)
        copies = max(1, min(MOST_COPIES, MANY // len(own_images)))
        number = torch.arange(len(own_images), device=own_images.device)
        number = torch.cat([number[:held], number[held:].repeat(copies)])
        images, labels, parts = own_images[number], own_labels[number], [held, *[len(own_images) - held] * copies]
        self.order = None if knowledge.order is None else list(knowledge.order)[-len(recorded) - 1 :]
        self._boxes = [*(one.encode for one in recorded), knowledge.encode]
        own = [_sent(one, images, labels, parts) for one in self._boxes]
        self.links: list[Link] = []
        self.damping = 0.0
        odd = number % 2 == 1  # with all copies of an image on one side
        seen = self._linked(own, odd, images, held) if self.order is None else self._taken_apart(own, images, held)
        pairs = Pairs(seen[held:], images[held:], seen[:held], images[:held])
        self.read, self.best, self.scores = self._learn_to_read(pairs, labels[held:], knowledge, seed)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.read(self._together(smashed(messages))[0])

    def linked(self, messages: Sequence[Message]) -> list[Tensor]:
        """For each epoch that was linked, the newest first: the row that each of these rows most likely is."""
        return self._together(smashed(messages))[1]

    def remarks(self) -> dict[str, object]:
        return {
            "linked_by": self.spec.link or LINKS[0],
            "epochs": len(self.theirs),
            "together": 1 + (len(self.links) if self.order is None else len(self.theirs)),
            "reader": self.best,
            "readers": {name: round(score, 4) for name, score in self.scores.items()},
        }

    def _learn_to_read(self, pairs: Pairs, labels: Tensor, knowledge: Knowledge, seed: int) -> Chosen:
        tried = list[Reader]()

        def train(name: str) -> Reader | None:
            if name in CODES:
                best = max(tried, key=score, default=None)
                reader = code_reader(name, self.spec, pairs, labels, self._encode_beside, best)
            else:
                reader = reader_of(name, self.spec, pairs, knowledge.undo)
            tried.extend([] if reader is None else [reader])
            return reader

        def score(reader: Reader) -> float:
            return quality(reader(pairs.held_seen), pairs.held_truth)

        return best_reader(self.spec, self.spec.readers, pairs.seen, seed, train, score)

    def _encode_beside(self, images: Tensor, labels: Tensor) -> Tensor:
        """What all heads that are read together make of these, in the order in which it is read."""
        now = self._boxes[-1]
        linked = self._boxes[:-1][::-1][: len(self.links)]
        boxes = self._boxes if self.order is not None else [now, *linked]
        return torch.cat([encode(images, labels).flatten(1) for encode in boxes], 1)

    def _together(self, seen: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What all messages say of these rows (of these samples, where it knows the order)."""
        if self.order is not None:
            *before, now = self.order
            passes = [*zip(self.theirs, before, strict=True), (seen, now)]
            if self.spec.beside:
                return _beside(passes, len(now)), []
            whole = taken_apart(passes, max(len(index) for index in self.order), self.damping)
            return whole[: len(now)], []
        rows = []
        for place, (link, theirs) in enumerate(zip(self.links, reversed(self.theirs), strict=False), start=1):
            found, which = link.follow(seen, theirs)
            seen = self._joined(seen, found, place)
            rows.append(which)
        return seen, rows

    def _linked(self, own: list[tuple[Tensor, Tensor]], odd: Tensor, images: Tensor, held: int) -> Tensor:
        """Learn to link, epoch after epoch from the newest back, as far as pictures gain by it."""
        *before, (rows, index) = own
        seen = rows[index]
        best, least, useful = seen, linear_error(seen, images, held), 0
        for place, (rows, index) in enumerate(reversed(before), start=1):
            self.links.append(Link.learnt(seen, rows, index, odd))
            found, _ = self.links[-1].follow(seen, rows, odd)
            seen = self._joined(seen, found, place)
            error = linear_error(seen, images, held)
            if error < least:
                best, least, useful = seen, error, place
        del self.links[useful:]
        return best

    def _joined(self, seen: Tensor, found: Tensor, place: int) -> Tensor:
        """What was collected of each sample in `place` passes, with what one more shows."""
        if self.spec.beside:
            return torch.cat([seen.flatten(1), found.flatten(1)], 1)
        return seen + (found - seen) / (place + 1)

    def _taken_apart(self, own: list[tuple[Tensor, Tensor]], images: Tensor, held: int) -> Tensor:
        if self.spec.beside:
            return _beside(own, len(images))
        shared = any(len(rows) < len(index) for rows, index in own)
        tried = {damping: taken_apart(own, len(images), damping) for damping in (DAMPINGS if shared else (0.0,))}
        self.damping = min(tried, key=lambda damping: linear_error(tried[damping], images, held))
        return tried[self.damping]


def _beside(passes: Sequence[tuple[Tensor, Tensor]], samples: int) -> Tensor:
    """Of each of the first samples its rows in all passes, one after the other."""
    return torch.cat([rows.flatten(1)[index[:samples]] for rows, index in passes], 1)


def _sent(
    encode: Callable[[Tensor, Tensor], Tensor], images: Tensor, labels: Tensor, parts: list[int]
) -> tuple[Tensor, Tensor]:
    """What the client would send in one pass over these images, and which row stands for each of them.

    Parts go by themselves: in a row that held-out images shared with those it learns from, a reader would know the
    rest, and copies of one image would find each other in a group.
    """
    seen = []
    for part, names in zip(images.split(parts), labels.split(parts), strict=True):
        order = torch.randperm(len(part)).to(part.device)
        sent = encode(part[order], names[order])
        seen.append(torch.empty_like(sent).index_copy_(0, order, sent))
    return shared_rows(torch.cat(seen))
