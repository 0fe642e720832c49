"""How an attacker looks at a guarded cut, in each form of knowledge."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.seeds import derive
from ..base import EVERY, FORMS, Knowledge, KnownGuard, smashed
from .keys import check_keys, copies_of

MIXED = 16  # keys of a mixture


def lifts(form: str) -> bool:
    return form in ("lift", "matched+lift")


def matches(form: str) -> bool:
    return form in ("matched", "matched+lift")


class View(nn.Module):
    """Two ways into one space, where an attacker compares its own activations with what it observed.

    oblivious: messages as they came; the attacker's network makes rows of that shape, as if there were no guard.
    lift: messages lifted back by the guard's public map; the attacker's network makes activations of the cut.
    matched: messages as they came; the attacker's activations go through its own copy of the guard.
    matched+lift: both. Messages are lifted, the attacker's activations go through its copy and the same lift, and are
    compared at the shape of the cut, where neighbours are neighbours again.

    `keys` says whose key the copy has (`parts/keys.py`). One to be recovered is read off the observed messages; who
    has none yet calls `find_key` when there are some. `lift` is another way back than the public map, such as the one
    that the server has learnt.
    """

    def __init__(self, form: str, keys: str, knowledge: Knowledge, seed: int, lift: nn.Module | None = None):
        super().__init__()
        form = "oblivious" if form == EVERY else form  # there is nothing to know, or nothing was said
        if form not in FORMS:
            raise ValueError(f"knows is one of {', '.join(FORMS)}; got {form!r}")
        check_keys(keys)
        assert knowledge.guard is not None
        self.form, self.keys, self.seed = form, keys, seed
        self.known = replace(knowledge.guard, true_key=None)  # whoever keeps an attacker keeps no client's key
        # Of one message. Whoever takes part in the training has none yet; both sides know the shape anyway.
        seen = knowledge.guard.spec.out_shape(knowledge.guard.shape)
        # What the attacker's own network must produce, and the shape messages have where both are compared.
        self.own = seen if form == "oblivious" else knowledge.guard.shape
        self.shape = knowledge.guard.shape if lifts(form) else seen
        self.undo = (lift or knowledge.guard.undo()) if lifts(form) else None
        self.copies = nn.ModuleList()
        self.key_empty: float | None = None
        if matches(form):
            recorded = keys == "recovered" and knowledge.observed is not None
            self._copy(knowledge.guard, smashed(knowledge.observed or ()) if recorded else None)

    def find_key(self, seen: Tensor) -> None:
        """Read the key off these messages, where it is to be recovered."""
        if self.keys == "recovered" and len(self.copies):
            self._copy(self.known, seen)

    def _copy(self, known: KnownGuard, seen: Tensor | None) -> None:
        drawn = [derive(self.seed, "key", number) for number in range(MIXED)]
        modules, self.key_empty = copies_of(known, self.keys, drawn, seen, self.seed)
        self.copies = nn.ModuleList(modules).requires_grad_(False)

    def remarks(self) -> dict[str, object]:
        """What a row says of a key that was looked for."""
        return {"key_empty": self.key_empty} if self.keys == "recovered" and matches(self.form) else {}

    def sent(self, z: Tensor, images: Tensor, labels: Tensor | None, step: int) -> Tensor:
        """The attacker's own activations as they would leave, one row a sample. Differentiable in z."""
        if not len(self.copies):
            return z
        y = labels if labels is not None else torch.zeros(len(z), dtype=torch.long, device=z.device)
        module = self.copies[step % len(self.copies)]
        seen, _, rows, _ = module(z, Batch(images, y, seed=step))
        seen, rows = module.unmixed(seen, rows)  # type: ignore[operator]
        return self.read(seen if rows is None else seen.index_select(0, rows))

    def read(self, seen: Tensor) -> Tensor:
        """An observed message in the space of comparison."""
        return self.undo(seen) if self.undo is not None else seen
