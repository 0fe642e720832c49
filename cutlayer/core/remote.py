"""The server as a client sees it: a differentiable function that happens to be far away."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .features import on_the_way
from .message import Handler, Kind, Message, Watcher, through

Named = Mapping[str, Tensor]
NOTHING: Named = {}
ANSWER = {Kind.FORWARD: "u", Kind.LOSS: "loss"}  # what a client goes on with


class Remote:
    """`body(z)` and `loss(z, y)` behave like local modules; gradients cross by themselves.

    Under `torch.no_grad()` the same calls are PREDICT messages: evaluation mode on the server, nothing held.
    """

    def __init__(self, client: int, send: Handler, *, watchers: Sequence[Watcher] = ()):
        """`watchers` see what is sent first."""
        self.client, self._send, self._watchers = client, send, tuple(watchers)
        self.forward_only = False  # whether no gradient is wanted back now
        self.continue_at(0)

    def continue_at(self, step: int) -> None:
        """Number the coming steps from `step` on: a resumed run replays the same conversation."""
        self._steps: Iterator[int] = count(step)

    def body(self, z: Tensor, packed: Any = None, beside: Named = NOTHING) -> Tensor:
        """u = body(z, **beside), by the server. `packed` are the bytes z may travel in (codecs.Prepared)."""
        if not torch.is_grad_enabled():
            return self.ask(Kind.PREDICT, 0, {"z": packed}, z=z, **on_the_way(beside))["u"]
        return _Computed.apply(_crossing(z), self, Kind.FORWARD, packed, on_the_way(beside))

    def loss(
        self, z: Tensor, y: Tensor, rows: Tensor | None = None, packed: Any = None, beside: Named = NOTHING
    ) -> Tensor:
        """The task loss, computed by the server, which therefore learns y (vanilla split learning).

        `rows` says for each label which row of z it belongs to, where guards let samples share rows.
        """
        if not torch.is_grad_enabled():
            logits = self.body(z, packed, beside)  # nothing to learn, so the labels need not travel
            return cross_entropy(logits if rows is None else logits.index_select(0, rows), y)
        known = {"y": y, **({} if rows is None else {"rows": rows}), **on_the_way(beside)}
        if self.forward_only:  # the server takes it from here: no BACKWARD, no dz
            return self.ask(Kind.LOSS, self.next_step(), {"z": packed}, z=z, **known)["loss"]
        return _Computed.apply(_crossing(z), self, Kind.LOSS, packed, known)

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """For a while, as a frozen client: the server learns, and no gradient comes back."""
        self.forward_only = True
        try:
            yield
        finally:
            self.forward_only = False

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """For a while, `watcher` stands last before the way to the server, or takes another one."""
        before, self._watchers = self._watchers, (*self._watchers, watcher)
        try:
            yield
        finally:
            self._watchers = before

    @property
    def watched_now(self) -> bool:
        """Whether somebody of the client's own looks at what is sent."""
        return bool(self._watchers)

    def next_step(self) -> int:
        return next(self._steps)

    def ask(self, kind: Kind, step: int, packed: Mapping[str, Any], /, **tensors: Tensor) -> Message:
        """Send one message and return the answer, which must belong to it."""
        bare = {name: tensor.detach() for name, tensor in tensors.items()}
        ready = {name: one for name, one in packed.items() if one is not None}
        message = Message(kind, self.client, step, bare, ready)
        return through(self._watchers, self._send)(message) if self._watchers else self._send(message)

    def gradient(self, step: int, du: Tensor) -> Tensor | None:
        """dz for du; a frozen client owes du and gets nothing back."""
        answer = self.ask(Kind.BACKWARD, step, {}, du=du)
        return None if self.forward_only else answer["dz"]


def _crossing(z: Tensor) -> Tensor:
    return z if z.requires_grad else z.detach().requires_grad_()  # a frozen client owes the server a backward pass


class _Computed(torch.autograd.Function):
    """What the server makes of z: u, or the loss. Its gradient comes back as the answer to a BACKWARD."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, remote: Remote, kind: Kind, packed: Any, known: Named) -> Tensor:
        ctx.remote, ctx.step = remote, remote.next_step()
        return remote.ask(kind, ctx.step, {"z": packed}, z=z, **known)[ANSWER[kind]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (du,) = grads
        return ctx.remote.gradient(ctx.step, du), None, None, None, None
