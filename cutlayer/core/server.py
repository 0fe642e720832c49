"""The server: a network and its optimizer behind one door, `handle`."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .errors import ProtocolError
from .message import Handler, Kind, Message, Watcher, through
from .seeds import derive, seeded
from .state import drop_gradients


class Bodies(Protocol):
    """Whose body answers a client, and when it steps."""

    optimizer: torch.optim.Optimizer | None

    def of(self, client: int) -> nn.Module: ...

    def version(self, client: int) -> int:
        """Grows with every step: a graph of an older version cannot be used any more."""

    def learnt(self, client: int, rows: int) -> None:
        """Gradients of a batch of so many rows are in the body: step now, gather them, or step a copy."""

    def forget(self, client: int) -> None:
        """Drop whatever is held for a client that starts anew."""


class OneBody:
    """One body for everybody, which steps at every batch."""

    def __init__(self, body: nn.Module, optimizer: torch.optim.Optimizer | None = None):
        self.body, self.optimizer, self.updates = body, optimizer, 0

    def of(self, client: int) -> nn.Module:
        return self.body

    def version(self, client: int) -> int:
        return self.updates

    def learnt(self, client: int, rows: int) -> None:
        self.step()

    def step(self) -> None:
        """Once, with the gradients that are in the body."""
        if self.optimizer is not None:
            self.optimizer.step()
            drop_gradients(self.optimizer)
            self.updates += 1

    def forget(self, client: int) -> None:
        self.body.zero_grad()  # of the pieces of a batch that never came whole


class _Held(NamedTuple):
    """A forward pass that waits for its gradient."""

    z: Tensor
    u: Tensor
    version: int


class Server:
    """Answers FORWARD, LOSS, BACKWARD and PREDICT; what `bodies` does with the gradients is theirs.

    BACKWARD is not idempotent, so the last answer to each client is kept: a retried message gets the same answer
    and no second step. `watchers` stand between the door and the answer: they compress it, or answer themselves.
    """

    def __init__(
        self,
        body: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        seed: int = 0,
        micro_batches: int = 1,
        bodies: Bodies | None = None,
        watchers: Sequence[Watcher] = (),
    ):
        self.body, self.criterion, self.seed = body, criterion, seed
        self.micro_batches = micro_batches  # of a batch, each with a number of its own: the last one makes it whole
        self.bodies = bodies or OneBody(body, optimizer)
        self.watchers = tuple(watchers)
        self._frozen: frozenset[int] = frozenset()
        self._held: dict[int, dict[int, _Held]] = {}  # by client and number
        self._answered: dict[int, tuple[Message, Message]] = {}
        self._device = next((p.device for p in body.parameters()), torch.device("cpu"))
        self._doors: dict[Kind, Handler] = {
            Kind.FORWARD: self._forward,
            Kind.LOSS: self._loss,
            Kind.BACKWARD: self._backward,
            Kind.PREDICT: self._predict,
        }
        self._handle = through(self.watchers, self._answer)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self.bodies.optimizer

    @torch.enable_grad()
    def handle(self, message: Message) -> Message:
        """Answer one message. In process the caller sits inside its own forward pass: gradients are on here."""
        return self._handle(message)

    def _answer(self, message: Message) -> Message:
        if message.kind not in self._doors:
            raise ProtocolError(f"a server does not answer {message}")
        if message.kind is Kind.PREDICT:
            return self._predict(message)
        asked, answer = self._answered.get(message.client, (None, None))
        if asked is not None and answer is not None and _same(asked, message):
            return answer
        answer = self._doors[message.kind](message)
        self._answered[message.client] = (message, answer)
        return answer

    def open_round(self, frozen: Collection[int] = ()) -> None:
        """Clients begin a round; `frozen` ones get no gradients back."""
        self._frozen = frozenset(frozen)

    def forget(self, client: int) -> None:
        """Drop what is held for a client that went away: it will start anew."""
        self.settled(client)
        self.bodies.forget(client)

    def settled(self, client: int) -> None:
        """A client's turn is over, and it has all answers: none of them will be asked for again."""
        self._held.pop(client, None)
        self._answered.pop(client, None)

    # --------------------------------------------------------------------- messages
    def _computed(self, message: Message) -> tuple[Tensor, Tensor]:
        """(z, what the body makes of it), in training mode, under the seed of this step."""
        z, body = message["z"].detach().requires_grad_(), self.bodies.of(message.client)
        if not body.training:  # every step comes here, and a deep network takes its time to be told
            body.train()
        with seeded(derive(self.seed, "server", message.client, message.step), self._device):
            return z, body(z)

    def _hold(self, message: Message, z: Tensor, u: Tensor) -> None:
        """Keep the graph of a piece until its gradient comes, and no graph of a batch that was given up."""
        batch = message.step // self.micro_batches
        held = self._held.get(message.client, {})
        same = {step: one for step, one in held.items() if step // self.micro_batches == batch}
        self._held[message.client] = same | {message.step: _Held(z, u, self.bodies.version(message.client))}

    def _forward(self, message: Message) -> Message:
        z, u = self._computed(message)
        self._hold(message, z, u)
        return message.reply(u=u.detach())

    def _loss(self, message: Message) -> Message:
        z, logits = self._computed(message)
        loss = self.loss_of(message, logits)
        if message.client in self._frozen:  # its client wants no gradient, so there is nothing to wait for
            loss.backward()
            self.bodies.learnt(message.client, len(z))
        else:
            self._hold(message, z, loss)
        return message.reply(loss=loss.detach())

    def loss_of(self, message: Message, logits: Tensor) -> Tensor:
        """Of a batch whose labels came along."""
        rows = message.tensors.get("rows")
        return self.criterion(logits if rows is None else logits.index_select(0, rows), message["y"])

    def _backward(self, message: Message) -> Message:
        waits = self._held.get(message.client, {})
        held = waits.get(message.step)
        if held is None:
            waiting = f"step {', '.join(map(str, waits))} is waiting" if waits else "no step is waiting"
            raise ProtocolError(f"{message} has no forward pass to belong to: {waiting}")
        if since := self.bodies.version(message.client) - held.version:
            raise ProtocolError(
                f"{message} comes after {since} update(s) of the body by other clients: "
                "its graph is gone. Give each client its own body, or answer one client from FORWARD to BACKWARD"
            )
        du = message["du"]
        if du.shape != held.u.shape:
            raise ProtocolError(f"{message}: du has shape {tuple(du.shape)}, u had {tuple(held.u.shape)}")
        del waits[message.step]  # only now: a message that is refused changes nothing
        if not waits:
            del self._held[message.client]
        held.u.backward(du)
        if (message.step + 1) % self.micro_batches == 0:
            self.bodies.learnt(message.client, len(held.z))
        if message.client in self._frozen:
            return message.reply()
        assert held.z.grad is not None
        return message.reply(dz=held.z.grad)

    @torch.no_grad()
    def _predict(self, message: Message) -> Message:
        self.body.eval()
        return message.reply(u=self.body(message["z"]))


def _same(one: Message, other: Message) -> bool:
    """A retry repeats the whole message. A new conversation may reuse a step number, never the data as well."""
    return (one.kind, one.step, one.tensors.keys()) == (other.kind, other.step, other.tensors.keys()) and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )
