"""What a server lets in: each message of a client is checked against the order it was given, before anything runs."""

from collections.abc import Set

import torch
from torch import Tensor

from ..batch import Task
from ..message import Kind, Message
from ..plan import Plan, cut_shapes
from .session import Refused

PREDICTED = 4096  # samples in one PREDICT message at most


class Door:
    """Shapes, kinds and numbers a plan allows. `open` says what the coming messages may be."""

    def __init__(self, plan: Plan, task: Task):
        self._sent, self._u = cut_shapes(plan, task).sent, cut_shapes(plan, task).u
        self._classes, self._vanilla = task.classes, not plan.protocol.labels_stay_home
        # A last batch that is too small joins the one before it.
        self._rows = plan.batch + plan.least_batch
        self._asks = Kind.LOSS if self._vanilla else Kind.FORWARD
        self._first = self._last = self._step = self._count = 0
        self._order, self._waits = Kind.EVALUATE, False

    def open(self, order: Message | None) -> None:
        """The client has this order to follow; None: it may predict."""
        self._order, self._waits = (order.kind if order else Kind.EVALUATE), False
        self._step = self._first = order.step if order else 0
        self._last = self._step
        if order is not None and order.kind in (Kind.TURN, Kind.WEIGHTS):
            _, first, last = order["turn"].tolist()
            self._last += last - first

    def check(self, message: Message, client: int) -> None:
        """Refuse whatever is not the next message of this conversation. Nothing has changed when it raises."""
        if message.client != client:
            raise Refused("unknown client", f"{message}: this connection is client {client}")
        if self._order is Kind.EVALUATE:
            if message.kind is not Kind.PREDICT:
                raise Refused("kind", f"{message} was not asked for: only PREDICT is")
            self._tensors(message, {"z"})
            self._activations(message, max(self._rows, PREDICTED))
            return
        expected = Kind.BACKWARD if self._waits else self._asks
        if message.step != self._step or self._step >= self._last:
            raise Refused("step", f"{message}: the turn is steps {self._first} to {self._last}, at {self._step}")
        if message.kind is not expected:
            raise Refused("kind", f"{message} came where {expected.name} was expected")
        if message.kind is Kind.BACKWARD:
            self._tensors(message, {"du"})
            shape = () if self._vanilla else (self._count, *self._u)
            _refuse_other(message, "du", shape)
        else:
            self._tensors(message, {"z", "y"} if self._vanilla else {"z"}, {"rows"} if self._vanilla else set())
            self._activations(message, self._rows)
            if self._vanilla:
                self._labels(message)
            self._count = len(message["z"])

    def passed(self, message: Message) -> None:
        """The message was answered."""
        if message.kind is Kind.BACKWARD:
            self._step, self._waits = self._step + 1, False
        elif message.kind is self._asks:
            self._waits = True

    def closed(self, answer: Message) -> None:
        """The client says it has done what it was asked to."""
        if self._step != self._last or self._waits:
            raise Refused("step", f"{answer} after step {self._step} of a turn that ends at {self._last}")

    def _tensors(self, message: Message, needed: set[str], allowed: Set[str] = frozenset()) -> None:
        if not needed <= set(message.tensors) <= needed | allowed:
            raise Refused("shape", f"{message} carries {sorted(message.tensors)}, {sorted(needed)} was expected")

    def _activations(self, message: Message, most: int) -> None:
        z = message["z"]
        if not 0 < len(z) <= most if z.dim() else True:
            raise Refused("shape", f"{message}: z has {len(z) if z.dim() else 'no'} rows, 1 to {most} are allowed")
        _refuse_other(message, "z", (len(z), *self._sent))

    def _labels(self, message: Message) -> None:
        y, rows = message["y"], message.tensors.get("rows")
        if y.dtype != torch.int64 or y.dim() != 1 or (rows is None and len(y) != len(message["z"])):
            raise Refused("shape", f"{message}: y is one class number for each row of z")
        if len(y) > self._rows or not 0 <= int(y.min()) <= int(y.max()) < self._classes:
            raise Refused("range", f"{message}: y holds classes from 0 to {self._classes - 1}")
        if rows is not None:
            if rows.dtype != torch.int64 or rows.shape != y.shape:
                raise Refused("shape", f"{message}: rows has one number for each label")
            if not 0 <= int(rows.min()) <= int(rows.max()) < len(message["z"]):
                raise Refused("range", f"{message}: rows points outside of z")


def _refuse_other(message: Message, name: str, shape: tuple[int, ...]) -> None:
    tensor: Tensor = message[name]
    if tuple(tensor.shape) != shape:
        raise Refused("shape", f"{message}: {name} has shape {tuple(tensor.shape)}, {shape} was expected")
    if tensor.dtype != torch.get_default_dtype():
        raise Refused("dtype", f"{message}: {name} is {tensor.dtype}, {torch.get_default_dtype()} was expected")
    if not torch.isfinite(tensor).all():
        raise Refused("non-finite", f"{message}: {name} holds NaN or infinity")
