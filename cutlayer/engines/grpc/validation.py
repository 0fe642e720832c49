"""What a server lets in: each message of a client is checked against the order it was given, before anything runs."""

from collections.abc import Set

import torch

from ...core.batch import NO_LABEL, Task
from ...core.lost_numbers import finite
from ...core.message import BESIDE, Kind, Message
from ...training.growing_text import GROWS, grows
from ...training.labels import label_shape
from ...training.plan.plan import Plan
from ...training.plan.roles import Phase
from ...training.plan.shapes import cut_shapes
from ...training.send_once import AGAIN
from .session import Refused

PREDICTED = 4096  # samples in one PREDICT message at most
ANY = -1  # rows of an answer that are not known here


class MessageValidator:
    """Shapes, kinds and numbers a plan allows. `open` says what the coming messages may be."""

    def __init__(self, plan: Plan, task: Task):
        cut = cut_shapes(plan, task)
        self._sent, self._u = cut.sent, cut.u
        self._beside = {f"{BESIDE}{name}": form for name, form in cut.beside.items()}
        self._classes, self._vanilla = task.classes, not plan.protocol.labels_stay_home
        self._label = label_shape(plan, task)  # of one sample: () for a class, a map where every pixel has one
        # A last batch that is too small joins the one before it; what is too small for its guard only a client knows.
        self._rows = 2 * plan.batch_size
        self._asks = Kind.LOSS if self._vanilla else Kind.FORWARD
        self._pieces, self._exchanges, self._exchanged = plan.micro_batches, plan.guard.exchange, -1
        self._fan_out = plan.guard.fan_out
        self._counts = not plan.guard.mixes_samples  # whether each row is a sample's own
        self._roles, self._phase, self._grows = plan.roles, Phase.SPLIT, grows(plan, task)
        self.silent = False  # whether nothing is heard of the turn but its end
        self._first = self._last = self._step = 0  # of the turn, in batches
        self.frozen, self._crosses, self._merges = False, plan.protocol.crosses, plan.rounds.merges
        self._order, self.touched = Kind.EVALUATE, False
        self._samples: int | None = 0  # that the client has sent in this turn; None: nobody can tell
        self._begin_batch()

    def open(self, order: Message | None) -> None:
        """The client has this order to follow; None: it may predict."""
        self._order = order.kind if order else Kind.EVALUATE
        self.touched = False  # whether this order has led to anything at the server yet
        self._samples = 0
        self._begin_batch()
        self._exchanged = -1
        self._step = self._first = order.step if order else 0
        self._last = self._step
        if order is not None and order.kind in (Kind.TURN, Kind.WEIGHTS):
            epoch, first, last, frozen = order["turn"].tolist()
            self._last += last - first
            self.frozen, self._phase = bool(frozen), self._roles.phase(epoch)
            self.silent = not self._crosses or self._phase is Phase.HOME
            if self.silent:
                self._step = self._last

    def check(self, message: Message, client: int) -> None:
        """Refuse whatever is not the next message of this conversation. Nothing has changed when it raises."""
        if message.client != client:
            raise Refused("unknown client", f"{message}: this connection is client {client}")
        if self._order is Kind.EVALUATE:
            if message.kind is not Kind.PREDICT:
                raise Refused("kind", f"{message} was not asked for: only PREDICT is")
            self._tensors(message, {"z", *self._beside}, {GROWS} if self._grows else set())
            if GROWS in message.tensors:
                self._places(message)
            else:
                self._activations(message, max(self._rows, PREDICTED))
            return
        if message.kind is Kind.LIFT:
            self._exchange(message)
            return
        if message.step // self._pieces != self._step or self._step >= self._last:
            raise Refused("step", f"{message}: the turn is steps {self._first} to {self._last}, at {self._step}")
        if message.kind is self._asks:
            expected = not self._answered and message.step > self._newest
        else:
            expected = message.kind is Kind.BACKWARD and message.step == min(self._waiting, default=-1)
            last = (message.step + 1) % self._pieces == 0
            expected = expected and (last or self._newest + 1 == (self._step + 1) * self._pieces)
        if not expected:
            waiting = f"gradients for {sorted(self._waiting)}" if self._waiting else self._asks.name
            raise Refused("kind", f"{message} came where {waiting} was expected")
        if message.kind is Kind.BACKWARD:
            self._tensors(message, {"du"})
            shape = () if self._vanilla else (self._rows_of(message), *self._u)
            _refuse_other(message, "du", shape)
        elif self._phase is Phase.AGAIN:
            self._tensors(message, {AGAIN})  # what it refers to the server itself compares
        else:
            needed = {"z", *self._beside, *(["y"] if self._vanilla else [])}
            self._tensors(message, needed, {"rows"} if self._vanilla else set())
            self._activations(message, self._rows)
            if self._vanilla:
                self._labels(message)

    def passed(self, message: Message) -> None:
        """The message is being answered."""
        self.touched = self.touched or message.kind is not Kind.PREDICT
        if message.kind is self._asks:
            self._count(message)
        if message.kind is Kind.LIFT:
            self._exchanged = self._step
        elif message.kind is Kind.BACKWARD:
            del self._waiting[message.step]
            self._answered = True
            if (message.step + 1) % self._pieces == 0:
                self._step += 1
                self._begin_batch()
        elif message.kind is Kind.LOSS and self.frozen:
            self._step += 1
            self._begin_batch()
        elif message.kind is self._asks:
            rows = ANY if AGAIN in message.tensors else len(message["z"]) * self._fan_out
            self._waiting[message.step], self._newest = rows, message.step

    def closed(self, answer: Message) -> None:
        """The client says it has done what it was asked to."""
        samples = int(answer["samples"]) if "samples" in answer.tensors else 0
        if self._merges and "samples" in answer.tensors and not samples:
            return  # its numbers were gone on the way
        if not self.silent and self._samples is not None and samples > self._samples:
            raise Refused("range", f"{answer} tells of {samples} samples, and {self._samples} were sent")
        if self._step != self._last or self._waiting:
            raise Refused("step", f"{answer} after step {self._step} of a turn that ends at {self._last}")

    def _count(self, message: Message) -> None:
        """Samples that leave: as many as labels, or as rows where no row is of several."""
        told = message.tensors.get("y")
        if told is None and (AGAIN in message.tensors or not self._counts):
            self._samples = None
        if self._samples is not None:
            self._samples += len(told) if told is not None else len(message["z"]) * self._fan_out

    def _rows_of(self, gradient: Message) -> int:
        """How many a gradient must have. Of rows that were sent before, the server holds what it answered."""
        rows, du = self._waiting[gradient.step], gradient["du"]
        return len(du) if rows == ANY and du.dim() else rows

    def _exchange(self, message: Message) -> None:
        """The server's half of a guard, before a batch and once for it. What is in it the server itself compares."""
        if (
            message.step != self._step
            or self._step >= self._last
            or self._newest >= 0
            or self._exchanged == self._step
        ):
            raise Refused("step", f"{message}: the turn is steps {self._first} to {self._last}, at {self._step}")
        if not self._exchanges or bool(message.tensors) != (self._exchanges == "replace"):
            raise Refused("kind", f"{message}: this guard's half at the server is not exchanged that way")
        for name, tensor in message.tensors.items():
            if tensor.is_floating_point() and not finite(tensor):
                raise Refused("non-finite", f"{message}: {name} holds NaN or infinity")

    def _begin_batch(self) -> None:
        self._waiting: dict[int, int] = {}  # pieces whose gradient has not come: their rows, by number
        self._newest, self._answered = -1, False

    def _tensors(self, message: Message, needed: set[str], allowed: Set[str] = frozenset()) -> None:
        if not needed <= set(message.tensors) <= needed | allowed:
            raise Refused("shape", f"{message} carries {sorted(message.tensors)}, {sorted(needed)} was expected")

    def _activations(self, message: Message, most: int) -> None:
        z = message["z"]
        if not 0 < len(z) <= most if z.dim() else True:
            raise Refused("shape", f"{message}: z has {len(z) if z.dim() else 'no'} rows, 1 to {most} are allowed")
        _refuse_other(message, "z", (len(z), *self._sent))
        for name, form in self._beside.items():
            _refuse_other(message, name, (len(z), *form.shape), form.dtype)

    def _places(self, message: Message) -> None:
        """Some places of one text, wherever they are."""
        where, z = message[GROWS], message["z"]
        if where.dtype != torch.int64 or where.shape != (3,):
            raise Refused("shape", f"{message}: {GROWS} is three whole numbers")
        places = z.shape[1] if z.dim() > 1 else 0
        if not 0 < places <= self._sent[0]:
            raise Refused("shape", f"{message}: z has {places} places, 1 to {self._sent[0]} are allowed")
        _refuse_other(message, "z", (1, places, *self._sent[1:]))
        if min(where.tolist()) < 0 or int(where[2]) + places > self._sent[0]:
            raise Refused("range", f"{message}: {places} places from {int(where[2])} on, of {self._sent[0]}")

    def _labels(self, message: Message) -> None:
        y, rows = message["y"], message.tensors.get("rows")
        lifted = len(message["z"]) * self._fan_out
        fits = y.dim() == 1 + len(self._label) and tuple(y.shape[1:]) == self._label
        if y.dtype != torch.int64 or not fits or (rows is None and len(y) != lifted):
            each = "map of class numbers" if self._label else "class number"
            raise Refused("shape", f"{message}: y is one {each} for each row of z")
        if not 0 < len(y) <= self._rows:
            raise Refused("shape", f"{message}: y has {len(y)} labels, 1 to {self._rows} are allowed")
        known = y[y != NO_LABEL] if self._label else y  # pixels may have none
        if not known.numel() or not 0 <= int(known.min()) <= int(known.max()) < self._classes:
            raise Refused("range", f"{message}: y holds classes from 0 to {self._classes - 1}")
        if rows is not None:
            if rows.dtype != torch.int64 or rows.shape != y.shape[:1]:
                raise Refused("shape", f"{message}: rows has one number for each label")
            if not 0 <= int(rows.min()) <= int(rows.max()) < lifted:
                raise Refused("range", f"{message}: rows points outside of z")


def _refuse_other(message: Message, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    tensor, dtype = message[name], dtype or torch.get_default_dtype()
    if tuple(tensor.shape) != shape:
        raise Refused("shape", f"{message}: {name} has shape {tuple(tensor.shape)}, {shape} was expected")
    if tensor.dtype != dtype:
        raise Refused("dtype", f"{message}: {name} is {tensor.dtype}, {dtype} was expected")
    if tensor.is_floating_point() and not finite(tensor):
        raise Refused("non-finite", f"{message}: {name} holds NaN or infinity")
