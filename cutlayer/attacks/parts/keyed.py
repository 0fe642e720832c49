"""White boxes with and without a secret key: how an attacker that knows the head makes messages of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ...core.batch import Batch, Task
from ...core.guard import GuardModule, Shape
from ...core.seeds import derive
from ...guards import SEAL, Guard
from ..base import EVERY, Attack, Knowledge, smashed
from .seal_keys import install, recover, recoverable

KEYS = ("guessed", "mixture", "recovered", "true")
WHITE = ("true", EVERY)  # the client's own head and guard, as they are
MIXED = 64  # keys of a mixture
MOST_ROWS = 8192  # made for a mixture: where there are few auxiliary images, each passes several keys
BATCH = 64  # rows that pass a copy of the guard at once


@dataclass(frozen=True, repr=False)
class Keyed(Attack):
    """An attack that knows the client's head. `key` says whose key it puts into a guard that has a secret one.

    true: the client's own. No server has it, so these rows are a ceiling. guessed: one of the attacker's drawing.
    mixture: many of them, so that a reader relies on none. recovered: the one that the observed messages give away
    (`seal_keys`). Not said: all of them in turn, and where there is no key to know, the plain white box.
    """

    key: str = field(default=EVERY, kw_only=True)
    told: ClassVar[tuple[str, ...]] = ("aux", "aux_labels")  # besides the white box

    def __post_init__(self) -> None:
        if self.key not in (*KEYS, EVERY):
            raise ValueError(f"key is one of {', '.join(map(repr, KEYS))}; got {self.key!r}")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.told, *(("encode", "undo") if self.key in WHITE else ("head", "guard", "undo", "observed")))

    @property
    def white_box(self) -> bool:
        """A key that was drawn at random is no knowledge of the guard; one that the messages gave away is."""
        return self.key in (*WHITE, "recovered")

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        if not guard.has_key:
            return [self.base()]
        if self.key != EVERY:
            return [self]
        useful = [key for key in KEYS if key != "recovered" or recoverable(guard.public_part(), shape)]
        return [replace(self, key=key) for key in useful]

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [cls.sized(budget).within(budget)]

    def within(self, budget: str) -> Self:
        """Every key, or where time is short the best that a server finds by itself."""
        return replace(self, key="recovered") if budget == "quick" else self

    def base(self) -> Self:
        return replace(self, key=EVERY)

    def ceiling(self, guard: Guard) -> bool:
        return self.key in WHITE and guard.has_key


class Made(NamedTuple):
    """An attacker's own messages, and which auxiliary image stands behind each row; one in ten images is held out."""

    seen: Tensor
    rows: Tensor
    held: Tensor
    held_rows: Tensor
    key_empty: float | None  # share of coefficients that are empty under a recovered key; None: none found
    encode: Callable[[Tensor, Tensor], Tensor]  # how those messages were made, for whoever has more images and labels


def made(key: str, knowledge: Knowledge, seed: int) -> Made:
    """What the client would send for the auxiliary images, as well as an attacker with this `key` can tell."""
    images, labels = knowledge.aux, knowledge.aux_labels
    assert images is not None and labels is not None
    every = torch.arange(len(images), device=images.device)
    held, rows = every.tensor_split([max(1, len(images) // 10)])
    if key in WHITE:
        assert knowledge.encode is not None
        seen = knowledge.encode(images, labels)
        return Made(seen[rows], rows, seen[held], held, None, knowledge.encode)

    head, empty = knowledge.head, None
    assert head is not None
    z = head(images, labels)
    copies = other = _copies(knowledge, derive(seed, "keys"), MIXED if key == "mixture" else 1)
    if key == "recovered":
        empty = _put_recovered(knowledge, seed, copies)
        if empty is None:
            return made("mixture", knowledge, seed)  # nothing was found; this is the next best
    if key == "mixture":
        rows = rows.repeat(max(1, min(MIXED, MOST_ROWS // len(images))))
        # The victim's key is in no mixture: readers are compared under keys that none of them was trained with.
        other = _copies(knowledge, derive(seed, "other keys"), MIXED)
    return Made(
        _through(copies, z[rows], images[rows], labels[rows]),
        rows,
        _through(other, z[held], images[held], labels[held]),
        held,
        empty,
        lambda x, y: _through(copies, head(x, y), x, y),
    )


def _copies(knowledge: Knowledge, seed: int, count: int) -> list[GuardModule]:
    assert knowledge.guard is not None
    return [knowledge.guard.copy(derive(seed, number)).requires_grad_(False) for number in range(count)]


def _put_recovered(knowledge: Knowledge, seed: int, copies: Sequence[GuardModule]) -> float | None:
    """Give the copies the key that the messages show, if they do."""
    assert knowledge.guard is not None and knowledge.observed is not None
    stages = knowledge.guard.spec.stages()
    seal = next((part for part in stages if isinstance(part, SEAL) and part.has_key), None)
    key = recover(smashed(knowledge.observed), seal, derive(seed, "recovery")) if seal is not None else None
    if key is None:
        return None
    for copy in copies:
        install(key, copy)
    return key.empty


@torch.no_grad()
def _through(copies: Sequence[GuardModule], z: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """One row a sample, batch after batch, each batch through the next copy of the guard."""
    sent = []
    for number, some in enumerate(torch.arange(len(z)).tensor_split(max(1, len(z) // BATCH))):
        copy = copies[number % len(copies)].to(z.device)
        guarded = copy(z[some], Batch(images[some], labels[some], seed=number))
        seen, rows = copy.unmixed(guarded.seen, guarded.rows)
        sent.append(seen if rows is None else seen[rows])
    return torch.cat(sent)
