"""The server as a client sees it: a differentiable function that happens to be far away."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .message import Handler, Kind, Message


class Remote:
    """`body(z)` and `loss(z, y)` behave like local modules; gradients cross by themselves.

    Under `torch.no_grad()` the same calls are PREDICT messages: evaluation mode on the server, nothing held.
    """

    def __init__(self, client: int, send: Handler):
        self.client, self._send = client, send
        self.continue_at(0)

    def continue_at(self, step: int) -> None:
        """Number the coming steps from `step` on: a resumed run replays the same conversation."""
        self._steps: Iterator[int] = count(step)

    def body(self, z: Tensor) -> Tensor:
        """u = body(z), computed by the server."""
        if not torch.is_grad_enabled():
            return self.ask(Kind.PREDICT, 0, z=z)["u"]
        return _Body.apply(_crossing(z), self)

    def loss(self, z: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
        """The task loss, computed by the server, which therefore learns y (vanilla split learning).

        `rows` says for each label which row of z it belongs to, where guards let samples share rows.
        """
        if not torch.is_grad_enabled():
            logits = self.body(z)  # nothing to learn, so the labels need not travel
            return cross_entropy(logits if rows is None else logits.index_select(0, rows), y)
        return _Loss.apply(_crossing(z), y, rows, self)

    @contextmanager
    def through(self, send: Handler) -> Iterator[None]:
        """For a while, send by another way."""
        before, self._send = self._send, send
        try:
            yield
        finally:
            self._send = before

    def next_step(self) -> int:
        return next(self._steps)

    def ask(self, kind: Kind, step: int, **tensors: Tensor) -> Message:
        """Send one message and return the answer, which must belong to it."""
        message = Message(kind, self.client, step, {name: t.detach() for name, t in tensors.items()})
        return self._send(message)


def _crossing(z: Tensor) -> Tensor:
    # A frozen client still owes the server a backward pass.
    return z if z.requires_grad else z.detach().requires_grad_()


class _Body(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, remote: Remote) -> Tensor:
        ctx.remote, ctx.step = remote, remote.next_step()
        return remote.ask(Kind.FORWARD, ctx.step, z=z)["u"]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (du,) = grads
        return ctx.remote.ask(Kind.BACKWARD, ctx.step, du=du)["dz"], None


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, rows: Tensor | None, remote: Remote) -> Tensor:
        ctx.remote, ctx.step = remote, remote.next_step()
        labels = {"y": y} if rows is None else {"y": y, "rows": rows}
        return remote.ask(Kind.LOSS, ctx.step, z=z, **labels)["loss"]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (du,) = grads
        return ctx.remote.ask(Kind.BACKWARD, ctx.step, du=du)["dz"], None, None, None
