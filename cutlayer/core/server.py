"""The server: a body and its optimizer behind one method, `handle`."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .compressor import Compressor
from .errors import NonFinite, ProtocolError
from .message import Handler, Kind, Message
from .seeds import derive, seeded
from .state import State, drop_gradients, load_optimizer, named, optimizer_state, unnamed

Optimizing = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer | None]


class _Held(NamedTuple):
    """A forward pass that waits for its gradient."""

    z: Tensor
    u: Tensor
    updates: int


@dataclass
class _Side:
    """A body and what steps it."""

    body: nn.Module
    optimizer: torch.optim.Optimizer | None
    updates: int = 0
    correct: Callable[[], None] = lambda: None


class Server:
    """Answers FORWARD, LOSS, BACKWARD and PREDICT. It steps its optimizer at BACKWARD.

    BACKWARD is not idempotent, so the last answer to each client is kept: a retried message gets the same
    answer and no second optimizer step. Between `open_round` and `close_wave` it steps not at all but adds up what
    the clients of the round bring; with `copies` every client of a round has a body of its own, until `collect`.
    """

    def __init__(
        self,
        body: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        seed: int = 0,
        micro_batches: int = 1,
        down: Compressor | None = None,
        back: Compressor | None = None,
        exchange: str = "",
        copies: Optimizing | None = None,
        wave: str = "",
        fresh: bool = False,
    ):
        self.exchange = exchange  # of the lift, which is the first part of the body: "copy", "replace" or none
        self.down, self.back = down or Compressor(), back or Compressor()  # how u and dz leave
        self.criterion, self.seed = criterion, seed
        self.micro_batches = micro_batches  # of a batch, each with its own number: the optimizer steps at the last
        self._main = _Side(body, optimizer)
        self.copies, self._own = copies, dict[int, _Side]()  # how a copy of the body is stepped; None: no copies
        self.correction: Callable[[nn.Module], Callable[[], None]] | None = None  # what a rule asks of a copy
        self.wave = wave  # "rows" or "even": how gradients of a round are weighed; empty: every batch is a step
        self._pending: dict[int, tuple[float, list[Tensor]]] = {}  # gradients of a wave, by client
        self._gathered: list[Tensor] = []
        self._weight = 0.0
        self.fresh = fresh
        self.kept: dict[int, State] = {}  # by client: the optimizer of its copy, which lives on unless `fresh`
        self._spent: dict[int, State] = {}
        self._frozen: frozenset[int] = frozenset()
        self._held: dict[int, dict[int, _Held]] = {}  # by client and number
        self._answered: dict[int, tuple[Message, Message]] = {}
        self._device = next((p.device for p in body.parameters()), torch.device("cpu"))
        self._doors: dict[Kind, Handler] = {
            Kind.FORWARD: self._forward,
            Kind.LOSS: self._loss,
            Kind.BACKWARD: self._backward,
            Kind.PREDICT: self._predict,
            Kind.LIFT: self._lift,
        }

    @property
    def body(self) -> nn.Module:
        return self._main.body

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._main.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._main.optimizer = optimizer

    @property
    def updates(self) -> int:
        return self._main.updates

    @torch.enable_grad()
    def handle(self, message: Message) -> Message:
        """Answer one message. In process the caller sits inside its own forward pass: gradients are on here."""
        if message.kind not in self._doors:
            raise ProtocolError(f"a server does not answer {message}")
        if message.kind in (Kind.PREDICT, Kind.LIFT):
            return self._doors[message.kind](message)
        asked, answer = self._answered.get(message.client, (None, None))
        if asked is not None and answer is not None and _same(asked, message):
            return answer
        answer = self._doors[message.kind](message)
        self._answered[message.client] = (message, answer)
        return answer

    def forget(self, client: int) -> None:
        """Drop what is held for a client that went away: it will start anew."""
        self._held.pop(client, None)
        self._answered.pop(client, None)
        self._own.pop(client, None)
        self._pending.pop(client, None)
        self._spent.pop(client, None)
        self.body.zero_grad()  # of the pieces of a batch that never came whole

    def settled(self, client: int) -> None:
        """A client's turn is over, and it has all answers: none of them will be asked for again."""
        self._held.pop(client, None)
        self._answered.pop(client, None)

    # ----------------------------------------------------------------------- rounds
    def open_round(self, frozen: Collection[int] = ()) -> None:
        """Clients begin a round; `frozen` ones get no gradients back."""
        self._frozen = frozenset(frozen)
        self._gathered, self._weight = [], 0.0
        self._own.clear()
        self._pending.clear()
        self._spent.clear()

    def collect(self, client: int) -> State:
        """What a client's turn has made of its copy of the body, which is gone then; the body's own if none."""
        side = self._own.pop(client, self._main)
        if not self.fresh:
            self._spent[client] = optimizer_state(side.optimizer)
        return named(side.body)

    def commit(self, client: int) -> None:
        """What a client brought counts: its gradients join those of the wave, its copy's optimizer lives on."""
        if client in self._spent:
            self.kept[client] = self._spent.pop(client)
        if client in self._pending:
            weight, found = self._pending.pop(client)
            self._gathered = [a + b for a, b in zip(self._gathered, found, strict=True)] if self._gathered else found
            self._weight += weight

    def take_over(self, state: State) -> None:
        """A merged body."""
        self.body.load_state_dict(unnamed(state))
        self._main.updates += 1

    def keep(self) -> tuple[State, State]:
        """The body and its optimizer as they are, to come back to if a client spoils them."""
        return named(self.body), optimizer_state(self.optimizer)

    def go_back(self, kept: tuple[State, State]) -> None:
        self.take_over(kept[0])
        load_optimizer(self.optimizer, kept[1])
        self.body.zero_grad()

    def lost_numbers(self) -> str:
        """Which weights of the body are no numbers any more; empty if all are."""
        for name, tensor in self.body.state_dict().items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                return f"it leaves the body with NaN or infinity ({name})"
        return ""

    def close_wave(self) -> None:
        """One step from the mean of all gradients of the round."""
        if not self._weight:
            return
        for parameter, total in zip(self.trainable(), self._gathered, strict=True):
            parameter.grad = total / self._weight
        self._gathered, self._weight = [], 0.0
        self.step()

    def _side(self, client: int) -> _Side:
        if self.copies is None:
            return self._main
        if client not in self._own:
            body = copy.deepcopy(self.body)
            optimizer = self.copies(body.parameters())
            load_optimizer(optimizer, self.kept.get(client, {}))
            for mine, whole in zip(_groups(optimizer), _groups(self.optimizer), strict=True):
                mine["lr"] = whole["lr"]  # as the schedule has it
            correct = self.correction(body) if self.correction is not None else lambda: None
            self._own[client] = _Side(body, optimizer, correct=correct)
        return self._own[client]

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.body.parameters() if parameter.requires_grad]

    def step(self, side: "_Side | None" = None) -> None:
        """Once, with the gradients that are in the body."""
        side = side or self._main
        if side.optimizer is not None:
            side.correct()
            side.optimizer.step()
            drop_gradients(side.optimizer)
            side.updates += 1

    def _gather(self, client: int, rows: float) -> None:
        """Put the gradients of one batch beside those of the others, until it is known whether they count."""
        weight = rows if self.wave == "rows" else 1.0
        trained = self.trainable()
        found = [torch.zeros_like(p) if p.grad is None else p.grad * weight for p in trained]
        if not all(bool(gradient.isfinite().all()) for gradient in found):
            self.body.zero_grad()
            raise NonFinite("its gradients of the body are not finite")
        self._pending[client] = weight, found
        self.body.zero_grad()

    # --------------------------------------------------------------------- messages
    def _hold(self, message: Message, z: Tensor, u: Tensor) -> None:
        """Keep the graph of a piece until its gradient comes, and no graph of a batch that was given up."""
        same = {
            n: one
            for n, one in self._held.get(message.client, {}).items()
            if n // self.micro_batches == message.step // self.micro_batches
        }
        self._held[message.client] = same | {message.step: _Held(z, u, self._side(message.client).updates)}

    def _forward(self, message: Message) -> Message:
        z, body = message["z"].detach().requires_grad_(), self._side(message.client).body
        body.train()
        with self._statistics_kept(), seeded(derive(self.seed, "server", message.client, message.step), self._device):
            u = body(z)
            reply = self.answer(message, u.detach())
        self._hold(message, z, u)
        return reply

    @contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """In a wave, one client's batch may not leave statistics to the others that are no numbers."""
        if not self.wave:
            yield
            return
        before = [buffer.clone() for buffer in self.body.buffers()]
        yield
        if not all(bool(b.isfinite().all()) for b in self.body.buffers() if b.is_floating_point()):
            for buffer, kept in zip(self.body.buffers(), before, strict=True):
                buffer.data.copy_(kept)  # beside autograd: others still have their backward pass to come
            raise NonFinite("its batch would leave statistics of the body that are not finite")

    def answer(self, message: Message, u: Tensor) -> Message:
        """u as the plan lets it travel."""
        sent, packed = self.down.compress(u)
        return message.reply({"u": packed}, u=sent)

    def _loss(self, message: Message) -> Message:
        z, body = message["z"].detach().requires_grad_(), self._side(message.client).body
        body.train()
        with self._statistics_kept(), seeded(derive(self.seed, "server", message.client, message.step), self._device):
            loss = self.loss_of(message, body(z))
        if message.client in self._frozen:  # its client wants no gradient, so there is nothing to wait for
            loss.backward()
            self._learn(message, len(z))
        else:
            self._hold(message, z, loss)
        return message.reply(loss=loss.detach())

    def loss_of(self, message: Message, logits: Tensor) -> Tensor:
        """Of a batch whose labels came along."""
        rows = message.tensors.get("rows")
        return self.criterion(logits if rows is None else logits.index_select(0, rows), message["y"])

    def _learn(self, message: Message, rows: int) -> None:
        """A batch has left its gradients in the body."""
        if self.wave:
            self._gather(message.client, rows)
        else:
            self.step(self._side(message.client))

    def _backward(self, message: Message) -> Message:
        waits = self._held.get(message.client, {})
        held = waits.get(message.step)
        if held is None:
            waiting = f"step {', '.join(map(str, waits))} is waiting" if waits else "no step is waiting"
            raise ProtocolError(f"{message} has no forward pass to belong to: {waiting}")
        since = self._side(message.client).updates - held.updates
        if since:
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
            self._learn(message, len(held.z))
        if message.client in self._frozen:
            return message.reply()
        assert held.z.grad is not None
        return self.gradient(message, held.z.grad)

    def gradient(self, message: Message, dz: Tensor) -> Message:
        """dz as the plan lets it travel."""
        if type(self.back) is Compressor:
            return message.reply(dz=dz)
        with seeded(derive(self.seed, "back", message.client, message.step), self._device):
            dz, packed = self.back.compress(dz)
        return message.reply({"dz": packed}, dz=dz)

    # -------------------------------------------------------------------- the rest
    @torch.no_grad()
    def _lift(self, message: Message) -> Message:
        """The server's half of the guard, to a client that may copy it, or a new one from one that may set it."""
        if not self.exchange or bool(message.tensors) != (self.exchange == "replace"):
            raise ProtocolError(f"{message}: this guard's half at the server is not exchanged that way")
        lift = self._side(message.client).body.get_submodule("0")
        if not message.tensors:
            return message.reply({}, **{f"lift.{name}": t.clone() for name, t in lift.state_dict().items()})
        own, given = lift.state_dict(), {n.removeprefix("lift."): t for n, t in message.tensors.items()}
        # In a chain, one guard's half is replaced, and others stay.
        if any(n not in own or (own[n].shape, own[n].dtype) != (t.shape, t.dtype) for n, t in given.items()):
            raise ProtocolError(f"{message}: these are not the weights of the guard's half at the server")
        lift.load_state_dict(own | given)
        return message.reply()

    @torch.no_grad()
    def _predict(self, message: Message) -> Message:
        self.body.eval()
        u = self.body(message["z"])
        if type(self.down) is Compressor:
            return message.reply(u=u)
        with seeded(derive(self.seed, "predict", message.client), self._device):
            u, packed = self.down.compress(u)
        return message.reply({"u": packed}, u=u)


def _groups(optimizer: torch.optim.Optimizer | None) -> list[dict[str, object]]:
    return [] if optimizer is None else optimizer.param_groups


def _same(one: Message, other: Message) -> bool:
    """A retry repeats the whole message. A new conversation may reuse a step number, never the data as well."""
    return (one.kind, one.step, one.tensors.keys()) == (other.kind, other.step, other.tensors.keys()) and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )
