"""Labels read off a gradient by who knows the tail: the class whose own gradient has the direction of that sent."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.functional import cross_entropy

from ...core.batch import PAD
from ...core.message import Message
from .exchanges import exchanges, unit

SURE = 0.5  # cosine of two gradients from which they are taken for the same
CANDIDATES = 4  # classes whose gradients are compared, the likeliest by slope


class Named(NamedTuple):
    """The label of each place, and how like its gradient is to that observed: 1 to the letter, 0 there was none."""

    labels: Tensor
    match: Tensor


def named_by_gradient(tail: nn.Module, u: Tensor, du: Tensor, **beside: Tensor) -> Named:
    """(samples,) labels, or (samples, length) where every token has one; `u` is what the server answered.

    A step against du raises the score of the true class most (one forward derivative). Slopes of unlike sizes may
    mislead, so the gradients of the likeliest classes are compared with du themselves. Directions, not distances: a
    loss is a mean over a number of labels that the server need not know.
    """
    own = u.detach()
    scores, slopes = jvp(lambda rows: tail(rows, **beside), (own,), (-du,))  # type: ignore[misc]
    likeliest = slopes.topk(min(CANDIDATES, scores.shape[1]), dim=1).indices
    wanted = _by_token(du, scores)
    best: Named | None = None
    for labels in likeliest.unbind(1):
        match = (_by_token(_gradient(tail, own, labels, beside), scores) * wanted).sum(-1)
        if best is None:
            best = Named(labels, match)
        else:
            closer = match > best.match
            best = Named(torch.where(closer, labels, best.labels), torch.where(closer, match, best.match))
    assert best is not None
    return best


def _gradient(tail: nn.Module, u: Tensor, labels: Tensor, beside: dict[str, Tensor]) -> Tensor:
    with torch.enable_grad():
        start = u.detach().requires_grad_()
        loss = cross_entropy(tail(start, **beside), labels, reduction="sum")
        return torch.autograd.grad(loss, start)[0]


def _by_token(rows: Tensor, scores: Tensor) -> Tensor:
    """Directions: one a token where tokens have labels, else one a sample."""
    return unit(rows.flatten(1) if scores.dim() == 2 else rows.flatten(2))


def next_tokens(body: nn.Module, tail: nn.Module, messages: Sequence[Message]) -> Named:
    """For each place of each text the token that the client was to name there."""
    found = []
    for upload, answer in exchanges(messages):
        with torch.no_grad():
            u = body(upload["z"], **upload.beside)
        found.append(named_by_gradient(tail, u, answer["du"], **upload.beside))
    return Named(torch.cat([one.labels for one in found]), torch.cat([one.match for one in found]))


def text_of(found: Named, otherwise: Tensor) -> Tensor:
    """Texts a token back from their labels; where the client had none to name the text has ended. The first token
    was nobody's label: it is as in `otherwise`."""
    later = torch.where(found.match > SURE, found.labels, PAD)
    return torch.cat([otherwise[:, :1], later[:, :-1]], 1)
