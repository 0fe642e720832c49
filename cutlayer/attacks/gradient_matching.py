"""Gradient matching: the text whose gradients are those that a client's weights moved by, once they change hands."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, one_hot

from ..core.batch import PAD
from ..core.message import Kind, Message
from ..core.stepping import adam
from .base import EVERY, Attacker, Knowledge, Turn
from .parts.moved_rows import HEAD, gradients_told
from .parts.view import View
from .parts.viewing import Viewing

COLDEST = 0.3  # temperature of the last step, the first one's is 1: choices become words


@dataclass(frozen=True, repr=False)
class GradientMatching(Viewing):
    """Texts from weights that change hands after a batch: words are chosen until they would move them as they did.

    DLG (Zhu et al. 2019), TAG (Deng et al. 2021) and LAMP (Balunović et al. 2022) search for inputs whose gradients
    are those observed. Here the server also made dz, so labels and layers behind the cut drop out: only the head is
    differentiated. Rows of the embedding that moved say which words the batch has; each place chooses among these,
    and choices learn to explain every row's gradient (relative squares) and those of the other weights (cosine). At
    the embedding cut that is a puzzle with one solution, if batches are small. No guard's forward pass is in the way.
    Needs weights that the server hands on or merges after every batch, and a step that shows its gradient: SGD
    without momentum, or an optimizer whose momentum travels too.
    """

    knows: str = EVERY
    steps: int = 800
    rate: float = 0.1
    most_images: int | None = 64  # type: ignore[misc]
    inputs: ClassVar[tuple[str, ...]] = ("texts",)
    needs: ClassVar[tuple[str, ...]] = ("task", "aux", "head", "guard", "turns")
    forms: ClassVar[tuple[str, ...]] = ("oblivious", "matched")  # a lift is of messages, and these are not read

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.steps) is not int or self.steps < 1 or not self.rate > 0:
            raise ValueError(f"{self}: steps is a whole number from 1 up, rate is above 0")
        if self.knows not in (*self.forms, EVERY):
            raise ValueError(f"GradientMatching: knows is one of {', '.join(self.forms)}; got {self.knows!r}")

    @classmethod
    def sized(cls, budget: str) -> Self:
        return cls(steps=400, most_images=32) if budget == "quick" else cls()

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Matching(self, knowledge, seed)


class _Matching(Attacker):
    def __init__(self, spec: GradientMatching, knowledge: Knowledge, seed: int):
        assert knowledge.guard is not None and knowledge.aux is not None and knowledge.turns is not None
        if knowledge.guard.spec.mixes_samples:
            raise ValueError(f"{spec} reads a text behind each row, and {knowledge.guard.spec} makes one of several")
        self.spec, self.view = spec, View(spec.knows, spec.keys, knowledge, seed)
        if self.view.own != knowledge.guard.shape:
            raise ValueError(f"{spec} knows nothing of {knowledge.guard.spec}, behind which a cut has another shape")
        box: Any = copy.deepcopy(knowledge.head)
        if getattr(box, "table", None) is None:
            raise ValueError(f"{spec} chooses words, and this head looks none up in a table")
        self.box, self.head = box, box.split.head.requires_grad_(True)
        for module in self.head.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        self.common = knowledge.aux.flatten().bincount(minlength=box.ids).float() + 1
        self.turns = {(one.upload.client, one.upload.step): one for one in knowledge.turns}
        self.table = next(name for name, one in self.head.named_parameters() if one is box.table.weight)
        if any(f"net.{HEAD}{self.table}" not in one.after for one in self.turns.values()):
            raise ValueError(f"{spec} goes by the table of words, and this one does not train or travel")
        self.length, self.unexplained = knowledge.aux.shape[1], list[float]()

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        uploads = [message for message in messages if message.kind is not Kind.BACKWARD]
        found = [self._batch(self.turns[one.client, one.step])[: len(one["z"])] for one in uploads]
        return torch.cat(found)

    def remarks(self) -> dict[str, object]:
        return {"match": round(sum(self.unexplained) / len(self.unexplained), 4)} if self.unexplained else {}

    def _batch(self, turn: Turn) -> Tensor:
        """The texts of a whole batch: its gradient is that of all of them."""
        told = self._gradients(turn)
        words, texts = self._candidates(told.rows), len(turn.upload["z"])
        allowed = self._allowed(turn, words)
        likely = (self.common[words] / self.common[words].sum()).log()
        choices = likely.expand(texts, self.length, -1).clone().requires_grad_()
        optimizer = adam([choices], self.spec.rate)
        with torch.enable_grad():
            for step in range(self.spec.steps):
                heat = COLDEST ** (step / self.spec.steps)
                loss = self._apart((choices / heat + allowed).softmax(2), words, turn, told)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.unexplained.append(float(loss.detach()))
        return words[(choices.detach() + allowed).argmax(2)]

    def _apart(self, chosen: Tensor, words: Tensor, turn: Turn, told: "Told") -> Tensor:
        """How unlike the gradients of such texts are to those observed."""
        table = self.box.table.weight
        vectors = chosen @ table[words].detach()
        mask = turn.upload.beside.get("mask")
        texts = (torch.ones(chosen.shape[:2], device=chosen.device) if mask is None else mask).long()
        z = self.view.sent(self.box.of_vectors(vectors, texts), texts, None, 0)
        own = [self.head.get_parameter(name) for name in told.others]
        *others, at_words = torch.autograd.grad(z, [*own, vectors], turn.dz, create_graph=True, allow_unused=True)
        rows = chosen.flatten(0, 1).T @ at_words.flatten(0, 1)
        # An optimizer's momentum is a gradient times something: the sum over all words says how much.
        wanted = told.rows[words]
        wanted = (
            wanted * ((wanted.sum(0) * rows.sum(0)).sum() / wanted.sum(0).square().sum().clamp_min(1e-30)).detach()
        )
        far = (rows - wanted).square().sum(1) / wanted.square().sum(1).clamp_min(1e-30)
        loss = far[wanted.abs().amax(1) > 0].mean()
        for one, seen in zip(others, told.others.values(), strict=True):
            if one is not None:
                loss = loss + 1 - cosine_similarity(one.flatten(), seen.flatten(), dim=0)
        return loss

    def _candidates(self, rows: Tensor) -> Tensor:
        """Ids whose rows moved. Where padding is masked its row never does."""
        moved = rows.abs().amax(1) > 0
        moved[PAD] = True
        return moved.nonzero().flatten()

    def _allowed(self, turn: Turn, words: Tensor) -> Tensor:
        """0 for what may stand at a place, next to minus infinity for what may not: a mask says where padding is."""
        mask = turn.upload.beside.get("mask")
        if mask is None:
            return self.common.new_zeros(())
        padding = one_hot((words == PAD).nonzero()[0], len(words)).bool()[0]
        return torch.where(mask.bool()[:, :, None] == ~padding, 0.0, -1e4)

    def _gradients(self, turn: Turn) -> "Told":
        found = gradients_told(turn, [name for name, _ in self.head.named_parameters()], self.table)
        rows = found.pop(self.table)
        return Told(rows, {name: one for name, one in found.items() if one.abs().amax() > 0})


class Told(NamedTuple):
    """Gradients of a batch: of the table of words, and of the head's other weights by name."""

    rows: Tensor
    others: dict[str, Tensor]
