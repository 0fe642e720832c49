"""The batches of all clients of a wave in one pass of the body: the same gradients, in a fraction of the time."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.errors import NonFinite, ProtocolError
from ..core.lost_numbers import finite
from ..core.message import Kind, Message, through
from ..core.server import Server
from ..core.threads import count_as_set
from .bodies import Gathered

FUSED = (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


class Fusion:
    """Answers one message of every client of a wave at once, as each would have been answered alone."""

    def __init__(self, server: Server):
        assert isinstance(server.bodies, Gathered)
        self.server, self.bodies = server, server.bodies
        self._held: tuple[Tensor, Tensor, dict[int, int]] | None = None  # z, what waits for du, rows by client

    @torch.enable_grad()
    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        count_as_set()
        if messages[0].kind is Kind.BACKWARD:
            return self._backward(messages)
        server, rows = self.server, {message.client: len(message["z"]) for message in messages}
        z = torch.cat([message["z"] for message in messages]).requires_grad_()
        server.body.train()
        beside = {name: torch.cat([m.beside[name] for m in messages]) for name in messages[0].beside}
        u = server.body(z, **beside)
        # Some guards send one row for several samples.
        lifted = u.split([count * (len(u) // len(z)) for count in rows.values()])
        if messages[0].kind is Kind.LOSS:
            losses = [server.loss_of(message, part) for message, part in zip(messages, lifted, strict=True)]
            self._held = z, torch.stack(losses), rows
            return [message.reply(loss=loss.detach()) for message, loss in zip(messages, losses, strict=True)]
        self._held = z, u, rows
        return [self._answer(message, u=part.detach()) for message, part in zip(messages, lifted, strict=True)]

    def _answer(self, message: Message, **tensors: Tensor) -> Message:
        """As alone: through whoever stands before the server's answers."""
        return through(self.server.watchers, lambda asked: asked.reply({}, **tensors))(message)

    def _backward(self, messages: Sequence[Message]) -> list[Message]:
        if self._held is None:
            raise ProtocolError(f"{messages[0]} has no forward pass of a wave to belong to")
        (z, u, rows), self._held = self._held, None
        came = {message.client: message for message in messages}
        # Clients are weighed relative to the largest batch, and dz is freed of that again: where all batches are
        # alike nothing is rounded.
        most = max(rows[client] for client in came)
        weights = {client: self.bodies.weight(rows[client]) / self.bodies.weight(most) for client in came}
        given = u.new_zeros(u.shape)  # a client that has left the wave has no say in it
        each = u.shape[0] // sum(rows.values()) if u.shape[0] != len(rows) or u.dim() > 1 else 0
        place = 0
        for client, count in rows.items():
            width = each * count or 1
            if client in came:
                given[place : place + width] = came[client]["du"].reshape(-1, *u.shape[1:]) * weights[client]
            place += width
        u.backward(given)
        for parameter in self.bodies.trainable():
            if parameter.grad is not None:
                parameter.grad.div_(sum(weights.values()))
        if not all(finite(p.grad) for p in self.bodies.trainable() if p.grad is not None):
            self.server.body.zero_grad()
            raise NonFinite("the gradients of this wave are not finite together, and whose they are cannot be told")
        self.bodies.step()
        assert z.grad is not None
        parts = dict(zip(rows, z.grad.split(list(rows.values())), strict=True))
        return [self._answer(m, dz=parts[m.client] / weights[m.client]) for m in messages]


def refuse_mixing(body: nn.Module) -> None:
    """Fusing is exact only where no sample sees another, and where nothing is drawn for each client."""
    for name, module in body.named_modules():
        draws = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if draws or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"fused=True: the body has {type(module).__name__} ({name}), which would see the batches of all "
                "clients as one. Take a network with group normalisation and no dropout, or fused=False"
            )
