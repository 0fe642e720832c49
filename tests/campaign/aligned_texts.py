"""FORA and PCAT for texts: a head of the attacker's own is aligned with the messages, and read by a sequence reader.

Not in the package: it fails its control (`test_aligned_texts.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cutlayer.attacks.base import EVERY, FORMS, Attacker, Knowledge, smashed
from cutlayer.attacks.parts.critic import Critic, gradient_penalty
from cutlayer.attacks.parts.mmd import mk_mmd
from cutlayer.attacks.parts.view import View
from cutlayer.attacks.parts.viewing import Viewing
from cutlayer.core.message import Message
from cutlayer.metrics.row_readers import Pairs, Size
from cutlayer.metrics.text_readers import train_text_reader
from cutlayer.metrics.texts import token_accuracy

BY = ("rows", "pairs", "texts", "critic", "body")
ROWS = 192  # that are compared in a step
HELD = 8  # one of so many auxiliary texts chooses the reader
PENALTY, CRITIC_RATE, BODY = 10.0, 3e-4, 0.3


@dataclass(frozen=True, repr=False)
class Aligned(Viewing):
    """Told the guard and the network's plan, not its weights. Its own head learns, behind its own copy of the guard,
    to send auxiliary texts that are distributed like the messages; a reader of its own messages then reads these.

    `by` says what is alike in the end: single rows, rows with their neighbour (the order of words is in them), whole
    texts, what a critic of whole texts sees, or pairs while the server's own body classifies them right (PCAT).
    """

    by: str = "pairs"
    steps: int = 400
    reader_steps: int = 200
    width: int = 32
    rate: float = 3e-3
    batch: int = 32
    knows: str = EVERY
    inputs: ClassVar[tuple[str, ...]] = ("texts",)
    needs: ClassVar[tuple[str, ...]] = ("task", "aux", "aux_labels", "observed", "net", "guard", "body")

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.by in BY and self.knows in (*FORMS, EVERY)

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Aligning(self, knowledge, seed)


class _Aligning(Attacker):
    def __init__(self, spec: Aligned, knowledge: Knowledge, seed: int):
        assert knowledge.net and knowledge.task and knowledge.observed and knowledge.aux is not None
        self.spec, self.view = spec, View(spec.knows, spec.keys, knowledge, seed)
        texts, labels = knowledge.aux, knowledge.aux_labels
        seen = self.view.read(smashed(knowledge.observed))
        self.theirs = Scale(seen)
        self.head = knowledge.net.head(knowledge.task.shape)
        self.distances: list[float] = []
        self._align(seen, texts, labels, knowledge.body)
        with torch.no_grad():
            own = torch.cat([self._own(some, -1 - place) for place, some in enumerate(texts.split(spec.batch))])
        self.ours, many = Scale(own), len(texts) // HELD
        pairs = Pairs(own[many:], texts[many:], own[:many], texts[:many])
        size = Size(spec.reader_steps, spec.width, 2 * spec.width)
        readers = {name: train_text_reader(name, size, pairs) for name in ("ridge", "conv")}
        self.kept = {
            name: float(token_accuracy(pairs.held_truth, read(pairs.held_seen)).mean())
            for name, read in readers.items() if read is not None
        }  # fmt: skip
        self.reader = readers[max(self.kept, key=self.kept.__getitem__)]

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.reader(self.ours.undone(self.theirs(self.view.read(smashed(messages)))))

    def remarks(self) -> dict[str, object]:
        """What is left of the distance, and how well it reads its own messages."""
        return {"mmd": round(sum(self.distances[-20:]) / 20, 4), "readers": self.kept, **self.view.remarks()}

    def _own(self, texts: Tensor, step: int) -> Tensor:
        return self.view.sent(self.head(texts), texts, None, step)

    def _align(self, seen: Tensor, texts: Tensor, labels: Tensor, body: nn.Module) -> None:
        spec = self.spec
        optimizer = torch.optim.Adam(self.head.parameters(), spec.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, spec.rate, total_steps=spec.steps)
        critic = Critic(tuple(seen.shape[1:]), 64, 2)
        judge = torch.optim.Adam(critic.parameters(), CRITIC_RATE)
        for step in range(spec.steps):
            pick = torch.randint(len(texts), (spec.batch,))
            sent = self._own(texts[pick], step)
            z, own = self.theirs(seen[torch.randint(len(seen), (spec.batch,))]), self.theirs(sent)
            loss = self._apart(z, own)
            self.distances.append(float(loss.detach()) - 2 / (min(ROWS, len(_as(spec.by, z))) - 1))
            if spec.by == "critic":
                loss = loss + 0.2 * critic(own).mean()
            if spec.by == "body":
                loss = loss + BODY * cross_entropy(body(sent), labels[pick])
            optimizer.zero_grad()
            loss.backward(inputs=list(self.head.parameters()))
            optimizer.step()
            schedule.step()
            if spec.by == "critic":
                low, high = critic(torch.cat([z, own.detach()])).chunk(2)
                verdict = low.mean() - high.mean() + PENALTY * gradient_penalty(critic, z, own.detach())
                judge.zero_grad()
                verdict.backward()
                judge.step()

    def _apart(self, z: Tensor, own: Tensor) -> Tensor:
        a, b = _as(self.spec.by, z), _as(self.spec.by, own)
        some = torch.randperm(len(a))[:ROWS]
        return mk_mmd(a[some], b[some])


def _as(by: str, z: Tensor) -> Tensor:
    """The rows whose distribution is compared."""
    if by == "texts":
        return z.flatten(1)
    return (z if by == "rows" else torch.cat([z[:, :-1], z[:, 1:]], 2)).flatten(0, 1)


class Scale:
    """Where rows lie and how wide they spread, by place and number."""

    def __init__(self, rows: Tensor):
        self.mean, self.std = rows.mean(0), rows.std(0).clamp_min(1e-2 * float(rows.std()) + 1e-6)

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.std

    def undone(self, rows: Tensor) -> Tensor:
        return rows * self.std + self.mean
