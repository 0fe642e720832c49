"""How an attacker looks at a guarded cut, in each form of knowledge."""

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.seeds import derive
from ..base import EVERY, FORMS, Knowledge

KEYS = ("own", "mixture", "true")  # whose key an attacker puts into its copy of a secret transform


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

    `lift` is another way back than the public map, such as the one that the server has learnt.
    """

    def __init__(self, form: str, knowledge: Knowledge, seed: int, keys: str = "own", lift: nn.Module | None = None):
        super().__init__()
        form = "oblivious" if form == EVERY else form  # there is nothing to know, or nothing was said
        if form not in FORMS or keys not in KEYS:
            raise ValueError(
                f"knows is one of {', '.join(FORMS)}, keys one of {', '.join(KEYS)}; got {form!r}, {keys!r}"
            )
        assert knowledge.guard is not None
        self.form = form
        # Of one message. Whoever takes part in the training has none yet; both sides know the shape anyway.
        seen = knowledge.guard.spec.out_shape(knowledge.guard.shape)
        # What the attacker's own network must produce, and the shape messages have where both are compared.
        self.own = seen if form == "oblivious" else knowledge.guard.shape
        self.shape = knowledge.guard.shape if lifts(form) else seen
        self.undo = (lift or knowledge.guard.undo()) if lifts(form) else None
        self.copies = nn.ModuleList()
        if matches(form):
            known = knowledge.guard
            if keys == "true":
                if known.true_key is None:
                    raise ValueError("the true key is the judge's to give, and this attacker was not given it")
                drawn = [known.true_key]
            else:
                drawn = [derive(seed, "key", number) for number in range(1 if keys == "own" else 16)]
            self.copies = nn.ModuleList(known.copy(key) for key in drawn)
            self.copies.requires_grad_(False)

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
