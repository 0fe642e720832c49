"""The server: a network and its optimizer behind one door, `handle`."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .bodies import Bodies
from .draws import is_still
from .errors import ProtocolError
from .input_first import input_first
from .message import Kind, Message, Watcher, through
from .pending import Held, Pending
from .seeds import derive, seeded
from .stepping import backward
from .threads import count_as_set


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
        self.bodies, self.watchers = bodies or Bodies(body, optimizer), tuple(watchers)
        self._frozen: frozenset[int] = frozenset()
        self.answers_first = False  # whether an answer goes out before the body has learnt: `catch_up` comes then
        self._owed: tuple[int, Callable[[], None]] | None = None  # what is put off, and for which client
        self.pending = Pending(micro_batches)
        self._device = next((p.device for p in body.parameters()), torch.device("cpu"))
        self._doors = {Kind.FORWARD: self._forward, Kind.LOSS: self._loss, Kind.BACKWARD: self._backward}
        self._handle = through(self.watchers, self._answer)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self.bodies.optimizer

    def handle(self, message: Message) -> Message:
        """Answer one message. In process the caller sits inside its own forward pass: gradients are on here."""
        count_as_set()
        with torch.enable_grad():
            self.catch_up()
            return self._handle(message)

    def catch_up(self) -> None:
        """Learn what was put off, at the latest when the next message comes."""
        owed, self._owed = self._owed, None
        if owed is not None:
            owed[1]()

    def _answer(self, message: Message) -> Message:
        if message.kind is Kind.PREDICT:
            return self._predict(message)
        if message.kind not in self._doors:
            raise ProtocolError(f"a server does not answer {message}")
        answer = self.pending.answered(message)
        if answer is None:
            answer = self._doors[message.kind](message)
            self.pending.keep(message, answer)
        return answer

    def open_round(self, frozen: Collection[int] = ()) -> None:
        """Clients begin a round; `frozen` ones get no gradients back."""
        self._frozen = frozenset(frozen)

    def forget(self, client: int) -> None:
        """Drop what is held for a client that went away: it will start anew."""
        self.settled(client)
        if self._owed is not None and self._owed[0] == client:
            self._owed = None
        self.bodies.forget(client)

    def settled(self, client: int) -> None:
        """A client's turn is over, and it has all answers: none of them will be asked for again."""
        self.pending.drop(client)

    def _computed(self, message: Message) -> tuple[Tensor, Tensor]:
        """(z, what the body makes of it), in training mode, under the seed of this step where it can draw."""
        z, body = message["z"].detach().requires_grad_(), self.bodies.of(message.client)
        if not body.training:  # every step comes here, and a deep network takes its time to be told
            body.train()
        if is_still(body):
            return z, body(z, **message.beside)
        with seeded(derive(self.seed, "server", message.client, message.step), self._device):
            return z, body(z, **message.beside)

    def _forward(self, message: Message) -> Message:
        z, u = self._computed(message)
        self.pending.hold(message, Held(z, u, self.bodies.version(message.client)))
        return message.reply(u=u.detach())

    def _loss(self, message: Message) -> Message:
        z, logits = self._computed(message)
        loss = self.loss_of(message, logits)
        if message.client in self._frozen:  # its client wants no gradient, so there is nothing to wait for
            self._soon(message.client, partial(backward, loss), len(z))
        else:
            self.pending.hold(message, Held(z, loss, self.bodies.version(message.client)))
        return message.reply(loss=loss.detach())

    def loss_of(self, message: Message, logits: Tensor) -> Tensor:
        """Of a batch whose labels came along."""
        rows = message.tensors.get("rows")
        return self.criterion(logits if rows is None else logits.index_select(0, rows), message["y"])

    def _backward(self, message: Message) -> Message:
        held = self.pending.take(message, self.bodies.version(message.client))
        rest = self._walk(held, message["du"], message.client)
        whole = (message.step + 1) % self.pending.micro_batches == 0  # the last piece makes the batch whole
        self._soon(message.client, rest, len(held.z) if whole else None)
        if message.client in self._frozen:
            return message.reply()
        assert held.z.grad is not None
        return message.reply(dz=held.z.grad)

    def _walk(self, held: Held, du: Tensor, client: int) -> Callable[[], None] | None:
        """Back through a graph, as far as somebody waits for it. What is left to walk is returned."""
        if client in self._frozen:
            return partial(backward, held.u, du)
        rest = input_first(held.u, du, held.z) if self.answers_first else None
        if rest is None:
            backward(held.u, du)
        return rest

    def _soon(self, client: int, rest: Callable[[], None] | None, rows: int | None) -> None:
        self._owed = client, partial(self._learn, client, rest, rows)
        if not self.answers_first:
            self.catch_up()

    def _learn(self, client: int, rest: Callable[[], None] | None, rows: int | None) -> None:
        """Walk what is left of a pass, and take a batch of so many rows for learnt."""
        if rest is not None:
            rest()
        if rows is not None:
            self.bodies.learnt(client, rows)

    @torch.no_grad()
    def _predict(self, message: Message) -> Message:
        self.body.eval()
        return message.reply(u=self.body(message["z"], **message.beside))
