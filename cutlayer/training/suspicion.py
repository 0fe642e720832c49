"""Weights from a server are suspects: a client takes over what clients have made, and what a merge can have made."""

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import OffPlan
from ..core.message import Kind, Message
from ..core.state import State
from .moves import LAST, Moves
from .orders import weights_in
from .plan.plan import Plan
from .seals import NAME, Seal, Seals

COUNTS = "batches"  # how many batches each client has, as it has sealed it: 8 bytes, and 32 of its code


class Suspicion:
    """One client's checks, in a relay and where rounds are merged."""

    def __init__(self, plan: Plan, client: int, batches: int, key: bytes):
        self._plan, self._client, self._key = plan, client, key
        self._seals = Seals(key, plan.fingerprint(), client)
        self._counts: list[int] = []
        self._moves: Moves | None = None
        self.batches_code = sealed_count(key, plan, client, batches)

    def refuse_foreign(self, order: Message, *, any_round: bool = False) -> None:
        """`any_round`: older weights are not refused, where nothing is released any more but a test."""
        weights = weights_in(order)
        if COUNTS in order.tensors:
            self._read_counts(order[COUNTS])
        if not weights:
            return
        if not self._plan.rounds.merges:
            self._seals.check(weights, any_round=any_round)
        elif NAME in weights or self._moves is None or not self._moves.last:
            self._seals.check(weights, any_round=True)  # what all start from is one client's
        elif self._plan.largest_move and not any_round:
            self._moves.check(order)
        if self._moves is not None and order.kind is Kind.WEIGHTS:
            self._moves.take(order)

    def sealed(self, order: Message, answer: Message) -> Message:
        """The answer to an order, with a seal on weights that others start from. What is merged has none."""
        steps, weights = answer.step - order.step, weights_in(answer)
        if not weights:
            return answer
        if self._plan.rounds.merges and steps:
            if self._moves is not None:
                self._moves.made(answer, steps)
            return answer
        return Message(answer.kind, answer.client, answer.step, self._seals.seal(answer.tensors))

    def adopt(self, sent: Message) -> None:
        """This is what has left: the chain goes on from it."""
        if NAME in sent.tensors:
            self._seals.adopt(Seal.read(sent[NAME]))

    def _read_counts(self, told: Tensor) -> None:
        """Of all clients, each sealed by its own: from them follows how many rounds were made without this one."""
        if told.dtype != torch.uint8 or told.shape != (self._plan.clients, 40):
            raise OffPlan("the server tells how many batches clients have in a form that cannot be read")
        counts = []
        for client, row in enumerate(told.cpu().numpy()):
            count = int.from_bytes(row[:8].tobytes(), "little")
            if not hmac.compare_digest(row[8:].tobytes(), sealed_count(self._key, self._plan, client, count)):
                raise OffPlan(f"the server tells of client {client} a number of batches that it has not sealed")
            counts.append(count)
        if self._counts not in ([], counts):
            raise OffPlan(f"the server tells other numbers of batches than before: {counts}, not {self._counts}")
        if not self._counts:
            self._begin(counts)

    def _begin(self, counts: Sequence[int]) -> None:
        self._counts, self._moves = list(counts), Moves(self._plan, self._client, counts)

    def seen(self) -> dict[str, Any]:
        """Plain facts for a snapshot: a rewind leads to what this client itself has seen."""
        moves = {"moves": self._moves.seen()} if self._moves is not None else {}
        return {"seals": self._seals.seen(), "counts": self._counts, **moves}

    def tensors(self) -> State:
        return self._moves.tensors() if self._moves is not None else {}

    def go_to(self, seen: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._seals.go_to(seen["seals"])
        if seen["counts"] and "moves" in seen:
            self._begin(seen["counts"])
            assert self._moves is not None
            self._moves.go_to(seen["moves"], tensors)


def without_last(state: Mapping[str, Tensor]) -> State:
    """A client's own state, from a snapshot that also has what it was last given."""
    return {name: t for name, t in state.items() if not name.startswith(LAST)}


def sealed_count(key: bytes, plan: Plan, client: int, batches: int) -> bytes:
    return hmac.digest(key, f"batches/{plan.fingerprint()}/{client}/{batches}".encode(), "sha256")


def counts_tensor(counts: Sequence[int], codes: Sequence[bytes]) -> Tensor:
    """What a server hands on of them."""
    rows = b"".join(count.to_bytes(8, "little") + code for count, code in zip(counts, codes, strict=True))
    return torch.frombuffer(bytearray(rows), dtype=torch.uint8).reshape(len(counts), 40)
