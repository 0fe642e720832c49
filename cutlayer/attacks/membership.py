"""Membership: was this sample trained on? What is trained on fits better, and the server sees how well it fits."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.batch import Task
from ..core.message import Kind, Message
from ..guards.base import Guard
from ..metrics.readers import Before, fit
from .base import ANY_INPUT, Attack, Attacker, Knowledge

SMALLEST = 1e-12  # a gradient of exactly zero still has a logarithm


@dataclass(frozen=True, repr=False)
class Membership(Attack):
    """Was a sample trained on? By its loss where labels travel, else by the size of the gradient it sends back.

    Where labels travel the server computes each sample's loss itself; elsewhere message 3 tells it nearly as much:
    du is small where the client's loss is. `calibrated` adds how hard a sample is to somebody who was not trained on
    it (Watson et al. 2022, difficulty calibration): the loss of a classifier of messages, trained on guarded
    head(aux). It needs the labels, so it is for vanilla split learning.
    """

    calibrated: bool = False
    steps: int = 600
    hidden: int = 256
    secret: ClassVar[str] = "membership"
    inputs: ClassVar[tuple[str, ...]] = ANY_INPUT

    def __post_init__(self) -> None:
        if min(self.steps, self.hidden) < 1:
            raise ValueError(f"{self}: steps and hidden are whole numbers from 1 up")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("body", "task", "aux", "aux_labels", "encode") if self.calibrated else ("body",)

    @classmethod
    def sized(cls, budget: str) -> Self:
        return cls()  # nothing to size: it trains nothing unless it is calibrated

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [cls()] if labels_stay_home or budget == "quick" else [cls(), cls(calibrated=True)]

    def why_not(self, task: Task, labels_stay_home: bool) -> str | None:
        if self.calibrated and labels_stay_home:
            return f"{self} needs labels that travel, and here they stay home: audit Vanilla, or take Membership()"
        return None

    def ceiling(self, guard: Guard) -> bool:
        return self.calibrated and guard.has_key

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Scoring(self, knowledge)


class _Scoring(Attacker):
    def __init__(self, spec: Membership, knowledge: Knowledge):
        assert knowledge.body is not None
        self.body = _as_in_training(knowledge.body)
        self.stranger: nn.Module | None = None
        if spec.calibrated:
            assert knowledge.aux is not None and knowledge.aux_labels is not None
            assert knowledge.encode is not None and knowledge.task is not None
            seen = knowledge.encode(knowledge.aux, knowledge.aux_labels).flatten(1)
            network = nn.Sequential(
                nn.Linear(seen.shape[1], spec.hidden), nn.ReLU(), nn.Dropout(0.5),
                nn.Linear(spec.hidden, knowledge.task.classes),
            )  # fmt: skip
            labels = knowledge.aux_labels
            trained = fit(network.to(seen), seen, labels, steps=spec.steps, rate=1e-3, loss=cross_entropy, decay=1e-2)
            self.stranger = Before(nn.Flatten(), trained)

    def infer(self, messages: Sequence[Message]) -> Tensor:
        """The higher, the more likely a member; one score for each row uploaded."""
        answers = {(message.client, message.step): message for message in messages if message.kind is Kind.BACKWARD}
        scores = []
        for message in messages:
            if message.kind is Kind.LOSS:
                scores.append(self._by_loss(message))
            elif message.kind is Kind.FORWARD:
                scores.append(self._by_gradient(message, answers.get((message.client, message.step))))
        return torch.cat(scores)

    def _by_gradient(self, upload: Message, answer: Message | None) -> Tensor:
        if self.stranger is not None:
            raise ValueError("Membership(calibrated=True) needs labels that travel (Vanilla): here, use Membership()")
        if answer is None:
            raise ValueError(f"{upload} has no gradient to go with it: membership shows in training steps alone")
        du = answer["du"].flatten(1).double()
        # The client's loss is a mean over its batch; times their number, rows of all batches compare.
        return -(len(du) * du.norm(dim=1)).clamp_min(SMALLEST).log()

    @torch.no_grad()
    def _by_loss(self, upload: Message) -> Tensor:
        z, y = upload["z"], upload["y"]
        rows = upload.tensors.get("rows", torch.arange(len(y), device=y.device))
        score = -cross_entropy(self.body(z, **upload.beside)[rows], y, reduction="none").double()
        if self.stranger is not None:
            score = score + cross_entropy(self.stranger(z)[rows], y, reduction="none").double()
        # Several samples may share a row: their mean stands for it.
        count = torch.zeros(len(z), dtype=score.dtype, device=score.device).index_add(0, rows, torch.ones_like(score))
        return torch.zeros_like(count).index_add(0, rows, score) / count.clamp_min(1)


def _as_in_training(body: nn.Module) -> nn.Module:
    """The body as it answered: BatchNorm by the batch. Dropout is off, it would only blur the losses."""
    body = copy.deepcopy(body).train().requires_grad_(False)
    for inner in body.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.track_running_stats = False
        elif isinstance(inner, nn.modules.dropout._DropoutNd):
            inner.eval()
    return body
