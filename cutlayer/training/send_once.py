"""Messages that are sent once: how clients learn at home, send their codes and refer to them, and who keeps them.

The server keeps the rows of each pass. In a later epoch a client says which batch is next, by two numbers; which rows
that is follows from the public seed, so that both sides know it and nothing of a sample travels.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import ProtocolError
from ..core.guard import GuardModule, Shape
from ..core.message import Handler, Kind, Message
from ..core.seeds import derive, seeded
from ..core.state import State
from ..core.stepping import backward
from .batches import epoch_batches
from .plan.plan import Plan
from .plan.roles import Phase, SendOnce
from .step import ClientNetwork, feed, figures, in_training, looked_at, noted, take_step

AGAIN = "again"  # the name under which a message refers to rows that were sent: epoch, batch of it, rows in all
CARRIERS = (Kind.FORWARD, Kind.LOSS)


def batches_again(plan: Plan, client: int, epoch: int, count: int) -> list[Tensor]:
    """Which of the rows that a client has sent are in each batch of an epoch: no secret, anew each time."""
    return epoch_batches(count, plan.batch_size, derive(plan.seed, AGAIN, client, epoch), plan.least_batch)


# ------------------------------------------------------------------------------- the client
def learn_at_home(client: ClientNetwork, batch: Batch) -> dict[str, float]:
    """A step without the server, from what the guard adds to the loss."""
    in_training(client)
    split = client.split
    with seeded(batch.seed, batch.x.device):
        terms = split.guarded(batch)[0].penalty
        values = looked_at(client, terms)
        if client.optimizer is not None:
            backward(reduce(torch.add, terms.values()))
            # What the guard's loss does not reach stays, but has its momentum: the state handed on keeps its form.
            for group in client.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            take_step(client)
    client.steps += 1
    noted(client, values)
    return values | figures(client)


def send(client: ClientNetwork, batch: Batch) -> dict[str, float]:
    """A frozen client's step in which no message hangs on the samples beside it."""
    in_training(client)
    head = client.split.head.eval()
    try:
        return feed(client, batch)
    finally:
        head.train()


def send_again(client: ClientNetwork, y: Tensor, reference: Tensor, sent: Shape, seed: int) -> dict[str, float]:
    """A frozen client's step about rows that the server has: a reference goes in their place."""

    def refer(message: Message, handle: Handler) -> Message:
        if message.kind in CARRIERS:
            message = Message(message.kind, message.client, message.step, {AGAIN: reference})
        return handle(message)

    batch = Batch(torch.zeros(len(y), *sent, device=y.device), y, seed=seed)
    with _without_head(client.split), client.remote.watched(refer):
        return feed(client, batch)


@contextmanager
def _without_head(split: Any) -> Iterator[None]:
    """Head and guard have done their work."""
    own = split.head, split.guard
    split.head, split.guard = nn.Identity(), GuardModule()
    try:
        yield
    finally:
        split.head, split.guard = own


# ------------------------------------------------------------------------------- the server
class KeptRows:
    """A watcher that keeps what frozen clients send, and puts it back where they refer to it."""

    def __init__(self, plan: Plan, roles: SendOnce):
        self._plan, self._roles = plan, roles
        self.epoch = 0  # of the round that is open
        self._kept: dict[tuple[int, int], dict[int, dict[str, Tensor]]] = {}  # by client and view, then by step

    def __call__(self, message: Message, answer: Handler) -> Message:
        if message.kind in CARRIERS:
            if AGAIN in message.tensors:
                return answer(self._again(message))
            if self._roles.phase(self.epoch) is Phase.SEND:
                rows = self._kept.setdefault((message.client, self._roles.view(self.epoch)), {})
                rows[message.step] = dict(message.tensors)
        return answer(message)

    def _again(self, message: Message) -> Message:
        reference = message[AGAIN]
        if reference.dtype != torch.int64 or reference.shape != (3,):
            raise ProtocolError(f"{message} refers to rows by three whole numbers; got {tuple(reference.shape)}")
        epoch, place, count = reference.tolist()
        if epoch != self.epoch or self._roles.phase(epoch) is not Phase.AGAIN:
            raise ProtocolError(f"{message} refers to rows of epoch {epoch + 1}, and this is epoch {self.epoch + 1}")
        whole = self._whole(message.client, self._roles.view(epoch))
        if len(whole.get("z", ())) != count:
            raise ProtocolError(
                f"{message} refers to {count} rows, of which {len(whole.get('z', ()))} have come: its client missed "
                "a pass, and has to take part in all of them"
            )
        batches = batches_again(self._plan, message.client, epoch, count)
        if not 0 <= place < len(batches):
            raise ProtocolError(f"{message} refers to batch {place} of {len(batches)}")
        rows = {name: tensor[batches[place].to(tensor.device)] for name, tensor in whole.items()}
        return Message(message.kind, message.client, message.step, rows)

    def _whole(self, client: int, view: int) -> dict[str, Tensor]:
        """All rows of a pass in the order of its steps. Joined once, and kept so."""
        steps = self._kept.get((client, view), {})
        if len(steps) > 1:
            parts = [steps[step] for step in sorted(steps)]
            joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            steps = self._kept[client, view] = {min(steps): joined}
        return next(iter(steps.values()), {})

    # What outlives a round, for snapshots. The rows of a pass that is still under way stay apart by step.
    def tensors(self) -> State:
        return {
            f"{client}.{view}.{step}.{name}": tensor.clone()
            for (client, view), steps in self._kept.items()
            for step, rows in steps.items()
            for name, tensor in rows.items()
        }

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Go back to what `tensors` once was."""
        self._kept = {}
        for key, tensor in kept.items():
            client, view, step, name = key.split(".", 3)
            self._kept.setdefault((int(client), int(view)), {}).setdefault(int(step), {})[name] = tensor


def keeping(plan: Plan) -> list[KeptRows]:
    """The watcher, where a plan sends once."""
    return [KeptRows(plan, plan.roles)] if isinstance(plan.roles, SendOnce) else []
