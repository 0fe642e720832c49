"""Training steps as the server has them: what was sent, and the gradient that came back for it."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...core.message import Kind, Message


class Exchange(NamedTuple):
    """One training step as the server has it."""

    forward: Message
    backward: Message


def exchanges(messages: Sequence[Message]) -> list[Exchange]:
    """Each upload with the gradient that came back for it, in the order of the uploads."""
    if any(message.kind is Kind.LOSS for message in messages):
        raise ValueError(
            "the labels travel in these messages (vanilla split learning): there is nothing to infer. "
            "Attack UShaped or Bypass, or leave label inference out"
        )
    came_back = {(m.client, m.step): m for m in messages if m.kind is Kind.BACKWARD}
    forward = [m for m in messages if m.kind is Kind.FORWARD]
    if missing := [m for m in forward if (m.client, m.step) not in came_back]:
        raise ValueError(f"{missing[0]} was not answered by a gradient: label inference reads whole training steps")
    return [Exchange(m, came_back[m.client, m.step]) for m in forward]


def unit(rows: Tensor) -> Tensor:
    """Length 1 along the last dimension, however short before: a sure client sends gradients of 1e-10. 0 stays 0."""
    largest = rows.abs().amax(-1, keepdim=True)
    scaled = rows / torch.where(largest > 0, largest, 1.0)
    return scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(1.0)


def as_it_answered(body: nn.Module) -> nn.Module:
    """The server's own network the way it answered: normalising by the batch, here without dropping anything out."""
    own = copy.deepcopy(body).train().requires_grad_(False)
    for module in own.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return own
