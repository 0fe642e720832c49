"""What weights that travel tell of a client's texts: in its turns, the words whose rows of the embedding moved."""

from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..attacks.parts.moved_rows import commonest_words, moved_rows, told
from ..core.batch import PAD
from ..core.message import Message
from ..data.tokenizer import UNKNOWN
from ..engines.local.run import LocalRun
from ..training.orders import numbers, weights_in
from ..training.plan.code import embeddings

MOST = 20  # turns that are looked at, the first ones: later ones tell the same
CLIENT = 0


class WordsTold:
    """Listens to the weights that one client is given and brings back; the judge compares with its texts."""

    def __init__(self, run: LocalRun):
        self._run, self._turns, self._ask = run, list[dict[str, float]](), run.carrier.ask
        tokenizer = run.parts.private.tokenizer
        unknown = UNKNOWN if tokenizer is None else tokenizer.unknown
        self._no_words = torch.tensor([PAD] if unknown is None else [PAD, unknown])
        self._tables = [f"net.{name}" for name in embeddings(run.plan.net, run.plan.protocol.crosses)]
        if run.task.vocabulary and run.plan.hands_on and self._tables:
            run.carrier.ask = self._listen  # type: ignore[method-assign]

    def _listen(self, client: int, order: Message) -> Message:
        answer = self._ask(client, order)
        if client == CLIENT and len(self._turns) < MOST:
            self._look(order, weights_in(order), weights_in(answer))
        return answer

    def _look(self, order: Message, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        for table in self._tables:
            found = moved_rows(before, after, table)
            if found is None or before[table].shape[0] != self._run.task.vocabulary:
                continue
            found, truth = self._named(found.cpu()), self._words(order)
            floor = told(commonest_words(self._run.parts.aux.x.long(), len(found), self._no_words), truth)
            there = {"words": float(len(truth)), "named": float(len(found)), **told(found, truth)}
            self._turns.append(there | {f"floor_{name}": value for name, value in floor.items()})

    def _words(self, order: Message) -> Tensor:
        """Of the batches of a turn, which the judge alone knows."""
        epoch, first, last, _ = numbers(order, "turn", 4)
        party = self._run.clients[CLIENT]
        index = torch.cat(party.order(epoch)[first:last]) if first < last else torch.empty(0).long()
        return self._named(party.samples.x[index.to(party.samples.x.device)].long().unique().cpu())

    def _named(self, ids: Tensor) -> Tensor:
        return ids[~torch.isin(ids, self._no_words)]

    def facts(self) -> dict[str, Any] | None:
        """Means over turns; None: no table of words travelled."""
        turns = [turn for turn in self._turns if turn["words"]]
        if not turns:
            return None
        return {"turns": len(turns)} | {name: mean(turn[name] for turn in turns) for name in turns[0]}


def in_words(found: dict[str, Any]) -> str:
    """The same as a sentence."""
    common = f"as many of the commonest words: {found['floor_recall']:.0%} and {found['floor_precision']:.0%}"
    return (
        f"rows of the embedding that moved name {found['recall']:.0%} of the {found['words']:.0f} words of a turn, "
        f"and {found['precision']:.0%} of what they name is right ({common})"
    )
