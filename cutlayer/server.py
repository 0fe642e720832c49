"""The server: a body and its optimizer behind one door, `handle`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .errors import ProtocolError
from .message import Handler, Kind, Message
from .seeds import derive, seeded
from .squeeze import Squeeze


class _Held(NamedTuple):
    """A forward pass that waits for its gradient."""

    z: Tensor
    u: Tensor
    updates: int


class Server:
    """Answers FORWARD, LOSS, BACKWARD and PREDICT. It steps its optimizer at BACKWARD.

    BACKWARD is not idempotent, so the last answer to each client is kept: a retried message gets the same
    answer and no second optimizer step.
    """

    def __init__(
        self,
        body: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        seed: int = 0,
        pieces: int = 1,
        down: Squeeze | None = None,
        back: Squeeze | None = None,
        exchange: str = "",
    ):
        self.exchange = exchange  # of the lift, which is the first part of the body: "copy", "replace" or none
        self.down, self.back = down or Squeeze(), back or Squeeze()  # how u and dz leave
        self.body, self.optimizer, self.criterion, self.seed = body, optimizer, criterion, seed
        self.pieces = pieces  # of a batch, each with a number of its own: the optimizer steps at the last one
        self.updates = 0
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
        self.body.zero_grad()  # of the pieces of a batch that never came whole

    def _hold(self, message: Message, z: Tensor, u: Tensor) -> None:
        """Keep the graph of a piece until its gradient comes, and no graph of a batch that was given up."""
        same = {
            n: one
            for n, one in self._held.get(message.client, {}).items()
            if n // self.pieces == message.step // self.pieces
        }
        self._held[message.client] = same | {message.step: _Held(z, u, self.updates)}

    def _forward(self, message: Message) -> Message:
        z = message["z"].detach().requires_grad_()
        self.body.train()
        with seeded(derive(self.seed, "server", message.client, message.step), self._device):
            u = self.body(z)
            sent, packed = self.down.squeeze(u.detach())
        self._hold(message, z, u)
        return message.reply({"u": packed}, u=sent)

    def _loss(self, message: Message) -> Message:
        z = message["z"].detach().requires_grad_()
        self.body.train()
        with seeded(derive(self.seed, "server", message.client, message.step), self._device):
            logits, rows = self.body(z), message.tensors.get("rows")
            if rows is not None:
                logits = logits.index_select(0, rows)
            loss = self.criterion(logits, message["y"])
        self._hold(message, z, loss)
        return message.reply(loss=loss.detach())

    def _backward(self, message: Message) -> Message:
        waits = self._held.get(message.client, {})
        held = waits.get(message.step)
        if held is None:
            waiting = f"step {', '.join(map(str, waits))} is waiting" if waits else "no step is waiting"
            raise ProtocolError(f"{message} has no forward pass to belong to: {waiting}")
        if held.updates != self.updates:
            raise ProtocolError(
                f"{message} comes after {self.updates - held.updates} update(s) of the body by other clients: "
                "its graph is gone. Give each client its own body, or answer one client from FORWARD to BACKWARD"
            )
        du = message["du"]
        if du.shape != held.u.shape:
            raise ProtocolError(f"{message}: du has shape {tuple(du.shape)}, u had {tuple(held.u.shape)}")
        del waits[message.step]  # only now: a message that is refused changes nothing
        if not waits:
            del self._held[message.client]
        held.u.backward(du)
        if self.optimizer is not None and (message.step + 1) % self.pieces == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.updates += 1
        assert held.z.grad is not None
        if type(self.back) is Squeeze:
            return message.reply(dz=held.z.grad)
        with seeded(derive(self.seed, "back", message.client, message.step), self._device):
            dz, packed = self.back.squeeze(held.z.grad)
        return message.reply({"dz": packed}, dz=dz)

    @torch.no_grad()
    def _lift(self, message: Message) -> Message:
        """The server's half of the guard, to a client that may copy it, or a new one from one that may set it."""
        if not self.exchange or bool(message.tensors) != (self.exchange == "replace"):
            raise ProtocolError(f"{message}: this guard's half at the server is not exchanged that way")
        lift = self.body.get_submodule("0")
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
        if type(self.down) is Squeeze:
            return message.reply(u=u)
        with seeded(derive(self.seed, "predict", message.client), self._device):
            u, packed = self.down.squeeze(u)
        return message.reply({"u": packed}, u=u)


def _same(one: Message, other: Message) -> bool:
    """A retry repeats the whole message. A new conversation may reuse a step number, never the data as well."""
    return (one.kind, one.step, one.tensors.keys()) == (other.kind, other.step, other.tensors.keys()) and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )
