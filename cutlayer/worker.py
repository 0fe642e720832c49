"""A client with its data: it follows orders, whether they come from this process or from afar."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Task, epoch_batches, in_batches
from .data.base import Samples
from .errors import ProtocolError
from .ledger import Ledger
from .message import Handler, Kind, Message
from .optimizers import set_rate
from .parties import build_client
from .pieces import Post, learn_in_pieces
from .plan import Plan, steps_per_epoch
from .seeds import derive
from .turn import State, export, learn, load, predict

EVALUATION_BATCH = 500
PURPOSES = ("validate", "test")  # what an evaluation is for, by its number in an order


class Worker:
    """One client's network and samples. All its randomness is a function of (private seed, client, step)."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        number: int,
        samples: Samples,
        held_out: Mapping[str, Samples],
        send: Handler,
        *,
        post: Post | None = None,
        ledger: Ledger,
        device: torch.device | str = "cpu",
    ):
        self.plan, self.device, self.ledger = plan, torch.device(device), ledger
        self.client = build_client(plan, task, number, send, device)
        self._post = post or _at_once(send)
        self.samples = on(samples, self.device)
        self.held_out = held_out
        self.on_step: Callable[[int, Mapping[str, float]], None] = lambda epoch, terms: None

    @property
    def number(self) -> int:
        return self.client.number

    @property
    def batches(self) -> int:
        """How many there are in an epoch."""
        return (
            steps_per_epoch([len(self.samples)], self.plan.batch, self.plan.least_batch) if len(self.samples) else 0
        )

    def handle(self, order: Message) -> Message:
        """Learn for a turn, or evaluate. Weights that come along are taken over first."""
        if order.kind in (Kind.TURN, Kind.WEIGHTS):
            epoch, first, last = numbers(order, "turn", 3)
            if order.step != self.client.steps:
                raise ProtocolError(f"{order}: this client stands at step {self.client.steps}")
            self.take_over(order)
            learnt = torch.tensor([self.turn(epoch, first, last)])
            brought = export(self.client) if order.kind is Kind.WEIGHTS else {}
            return Message(order.kind, self.number, self.client.steps, {"samples": learnt, **brought})
        if order.kind is Kind.EVALUATE:
            purpose, epoch = numbers(order, "what", 2)
            if not 0 <= purpose < len(PURPOSES):
                raise ProtocolError(f"{order} asks for an evaluation this client does not know")
            self.take_over(order)
            return order.reply(score=torch.tensor(self.evaluate(PURPOSES[purpose], epoch)))
        raise ProtocolError(f"a client does not follow {order}")

    def take_over(self, order: Message) -> None:
        """Start from what the last client left, where heads are shared."""
        if weights := weights_in(order):
            load(self.client, weights)

    def turn(self, epoch: int, first: int, last: int) -> int:
        """Learn from batches `first` to `last` (not included) of this epoch; returns how many samples they had."""
        if not 0 <= first < last <= self.batches:
            raise ProtocolError(f"batches {first} to {last} of an epoch that has {self.batches}")
        factor = self.plan.schedule.factor(epoch, self.plan.epochs)
        set_rate(self.client.optimizer, self.plan.client_optimizer.lr * factor)
        learnt = 0
        for index in self.order(epoch)[first:last]:
            terms = self._learn(index)
            learnt += len(index)
            self.ledger.samples["training"] += len(index)
            self.on_step(epoch, terms)
        return learnt

    def _learn(self, index: Tensor) -> dict[str, float]:
        if self.plan.pieces == 1:
            return learn(self.client, self.batch(index))
        pieces, seed = self.pieces(index), self.secret("step", self.client.steps)
        batches = [as_batch(self.samples, piece, derive(seed, place)) for place, piece in enumerate(pieces)]
        # The last piece of a batch always has the last number, by which the server knows it.
        first = (self.client.steps + 1) * self.plan.pieces - len(pieces)
        return learn_in_pieces(self.client, batches, first, self._post)

    def pieces(self, index: Tensor) -> tuple[Tensor, ...]:
        """The pieces a batch travels in; a small last batch has fewer."""
        most = len(index) // max(2, self.plan.guard.least_batch)
        return index.tensor_split(max(1, min(self.plan.pieces, most)))

    def evaluate(self, purpose: str, epoch: int, samples: Samples | None = None) -> tuple[int, int]:
        """(right, all) of the samples held out for `purpose`, or of others.

        Guards act here as they do in service. One that mixes samples gets batches of the size it was trained with: in
        a larger one it would find closer neighbours.
        """
        seen = on(self.held_out[purpose] if samples is None else samples, self.device)
        if not len(seen):
            return 0, 0
        size = self.plan.batch if self.plan.guard.mixes_samples else EVALUATION_BATCH
        batches = (
            as_batch(seen, index, self.secret(purpose, epoch, number))
            for number, index in enumerate(in_batches(torch.arange(len(seen)), size, self.plan.least_batch))
        )
        right = predict(self.client, batches).argmax(1) == seen.y
        self.ledger.samples["predicting"] += len(seen)
        return int(right.sum()), len(seen)

    def secret(self, *names: object) -> int:
        assert self.plan.private_seed is not None
        return derive(derive(self.plan.private_seed, "client", self.number), *names)

    def order(self, epoch: int) -> list[Tensor]:
        """Which samples each batch of an epoch has. The server cannot tell: the order is a secret."""
        return epoch_batches(len(self.samples), self.plan.batch, self.secret("order", epoch), self.plan.least_batch)

    def batch(self, index: Tensor) -> Batch:
        return as_batch(self.samples, index, self.secret("step", self.client.steps))

    def continue_at(self, steps: int) -> None:
        """Number the coming steps from `steps` on, and draw their randomness accordingly."""
        self.client.steps = steps
        self.client.remote.continue_at(steps * self.plan.pieces)


def _at_once(send: Handler) -> Post:
    """In one process there is nothing to wait for."""

    def post(message: Message) -> Callable[[], Message]:
        answer = send(message)
        return lambda: answer

    return post


def weights_in(message: Message) -> State:
    """The client weights and optimizer state that travel with an order or its answer."""
    return {name: t for name, t in message.tensors.items() if name.startswith(("net.", "optimizer."))}


def numbers(message: Message, name: str, count: int) -> list[int]:
    """The whole numbers an order carries under `name`."""
    found = message[name]
    if found.dtype != torch.int64 or found.shape != (count,):
        raise ProtocolError(f"{message} should carry {count} whole numbers as {name!r}")
    return [int(value) for value in found]


def refuse_too_few(plan: Plan, counts: Mapping[str, int]) -> None:
    """A guard that needs several samples at a time must find them in every set; a client may not be empty then."""
    least = plan.guard.least_batch
    for whose, count in counts.items():
        if 0 < count < least or (count == 0 and whose.startswith("client") and least > 1):
            raise ValueError(
                f"{whose} has {count} samples, {plan.guard} needs {least} at a time: "
                "fewer clients, more data, or a smaller k"
            )


def task_of(samples: Samples, classes: int) -> Task:
    """What both sides are told of the data."""
    attributes = {name: int(values.max()) + 1 for name, values in samples.s.items() if len(values)}
    return Task(tuple(samples.x.shape[1:]), classes, attributes)


def as_batch(samples: Samples, index: Tensor, seed: int = 0) -> Batch:
    """Rows of `samples` as the batch of one step, in torch's default precision."""
    images = samples.images(index.to(samples.y.device)).to(torch.get_default_dtype())
    return Batch(images, samples.y[index], {name: values[index] for name, values in samples.s.items()}, seed)


def on(samples: Samples, device: torch.device) -> Samples:
    if device.type == "cpu":
        return samples
    moved: dict[str, Any] = {name: values.to(device) for name, values in samples.s.items()}
    return Samples(samples.x.to(device), samples.y.to(device), moved, samples.identity)
