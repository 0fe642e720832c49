"""White boxes with and without a secret key: how an attacker that knows the head makes messages of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ...core.batch import Batch, Task
from ...core.guard import GuardModule, Shape
from ...core.seeds import derive
from ...guards import Guard
from ..base import EVERY, Attack, Knowledge, smashed
from .keys import KEYS, check_keys, copies_of
from .seal_keys import recoverable

IN_TURN = ("own", "mixture", "recovered", "true")  # unless one is asked for; the cosine is no better than any other
WHITE = ("true", EVERY)  # the client's own head and guard, as they are
MIXED = 64  # keys of a mixture
MOST_ROWS = 8192  # made for a mixture: where there are few auxiliary images, each passes several keys
BATCH = 64  # rows that pass a copy of the guard at once


@dataclass(frozen=True, repr=False)
class Keyed(Attack):
    """An attack that knows the client's head. `keys` says whose key it puts into a guard that has a secret one.

    true: the client's own. No server has it, so these rows are a ceiling. The others are those of `parts/keys.py`.
    Not said: all of them in turn but the cosine, and where there is no key to know, the plain white box.
    """

    keys: str = field(default=EVERY, kw_only=True)
    told: ClassVar[tuple[str, ...]] = ("aux", "aux_labels")  # besides the white box

    def __post_init__(self) -> None:
        check_keys(self.keys, (*KEYS, EVERY))

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.told, *(("encode", "undo") if self.keys in WHITE else ("head", "guard", "undo", "observed")))

    @property
    def white_box(self) -> bool:
        """A key that was drawn at random is no knowledge of the guard; one that the messages gave away is."""
        return self.keys in (*WHITE, "recovered")

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        if not guard.has_key:
            return [self.base()]
        if self.keys != EVERY:
            return [self]
        useful = [key for key in IN_TURN if key != "recovered" or recoverable(guard.public_part(), shape)]
        return [replace(self, keys=key) for key in useful]

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [one.within(budget) for one in super().suite(budget, task, labels_stay_home)]  # type: ignore[attr-defined]

    def within(self, budget: str) -> Self:
        """Every key, or where time is short the best that a server finds by itself."""
        return replace(self, keys="recovered") if budget == "quick" else self

    def base(self) -> Self:
        return replace(self, keys=EVERY)

    def ceiling(self, guard: Guard) -> bool:
        return self.keys in WHITE and guard.has_key


class Made(NamedTuple):
    """An attacker's own messages, and which auxiliary image stands behind each row; one in ten images is held out."""

    seen: Tensor
    rows: Tensor
    held: Tensor
    held_rows: Tensor
    key_empty: float | None  # share of coefficients that are empty under a recovered key; None: none found
    encode: Callable[[Tensor, Tensor], Tensor]  # how those messages were made, for whoever has more images and labels


def made(keys: str, knowledge: Knowledge, seed: int) -> Made:
    """What the client would send for the auxiliary images, as well as an attacker with these `keys` can tell."""
    images, labels = knowledge.aux, knowledge.aux_labels
    assert images is not None and labels is not None
    every = torch.arange(len(images), device=images.device)
    held, rows = every.tensor_split([max(1, len(images) // 10)])
    if keys in WHITE:
        assert knowledge.encode is not None
        seen = knowledge.encode(images, labels)
        return Made(seen[rows], rows, seen[held], held, None, knowledge.encode)

    head = knowledge.head
    assert head is not None and knowledge.guard is not None and knowledge.observed is not None
    z = head(images, labels)
    observed = smashed(knowledge.observed) if keys == "recovered" else None
    own = copies_of(knowledge.guard, keys, _seeds(seed, "keys"), observed, seed)
    copies = [copy.requires_grad_(False) for copy in own.modules]
    other: Sequence[GuardModule] = copies
    if len(copies) > 1:
        rows = rows.repeat(max(1, min(MIXED, MOST_ROWS // len(images))))
        # The victim's key is in no mixture: readers are compared under keys that none of them was trained with.
        other = copies_of(knowledge.guard, "mixture", _seeds(seed, "other keys")).modules
    return Made(
        _through(copies, z[rows], images[rows], labels[rows]),
        rows,
        _through(other, z[held], images[held], labels[held]),
        held,
        own.empty,
        lambda x, y: _through(copies, head(x, y), x, y),
    )


def _seeds(seed: int, name: str) -> list[int]:
    return [derive(derive(seed, name), number) for number in range(MIXED)]


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
