"""Adversaries at home: small networks that guess the input or an attribute from what leaves, and reversed gradients.

An adversary trains with the client, in the same backward pass, and never leaves it. It stands for attackers that
are not there yet: what it cannot read another one may.
"""

from collections.abc import Callable
from math import ceil, log, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, pixel_shuffle

from ...core.batch import Batch, Task
from ...core.guard import Shape
from ...core.spec import Spec
from ..base import need_task

# A number, one number a row, or a function that gives either once the backward pass asks for it.
Factor = float | Tensor | Callable[[], Tensor]


def scale_gradient(x: Tensor, factor: Factor) -> Tensor:
    """x forward; the gradient times `factor` backward."""
    scaled: Tensor = _Scaled.apply(x, factor)
    return scaled


def reverse(x: Tensor, factor: Factor) -> Tensor:
    """x forward; the gradient times -`factor` backward: what is behind descends a loss, what is before climbs it."""
    return scale_gradient(x, (lambda: -factor()) if callable(factor) else -factor)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Factor) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        factor = ctx.factor() if callable(ctx.factor) else ctx.factor
        if isinstance(factor, Tensor) and factor.dim() == 1:
            factor = factor.reshape(-1, *[1] * (grad.dim() - 1))
        return grad * factor, None


class ImageAdversary(nn.Module):
    """Guesses the inputs, of shape `image_shape`, from rows of shape `shape`.

    Maps of an image are read by convolutions at the size of the cut whose last one gives each place its block of
    pixels; anything else by two dense layers. There is no BatchNorm: a guess depends on its own row alone.
    """

    def __init__(self, shape: Shape, image_shape: Shape, width: int = 32):
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.maps = len(shape) == len(image_shape) == 3
        if not self.maps:
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(prod(shape), 8 * width), _bend(), nn.Linear(8 * width, prod(image_shape))
            )
            return
        # Networks halve. Whatever else is missing at the cut is the border that unpadded convolutions cut off.
        self.block = 1
        while 2 * self.block * max(shape[1:]) <= min(image_shape[1:]):
            self.block *= 2
        rows, columns = (ceil(side / self.block) for side in image_shape[1:])
        self.border = (*_halves(columns - shape[2]), *_halves(rows - shape[1]))
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, padding=1),
            _bend(),
            nn.Conv2d(width, width, 3, padding=1),
            _bend(),
            nn.Conv2d(width, image_shape[0] * self.block**2, 3, padding=1),
        )

    def forward(self, seen: Tensor) -> Tensor:
        if not self.maps:
            guess: Tensor = self.layers(_unit(seen))
            return guess.reshape(-1, *self.image_shape)
        blocks = self.layers(pad(_unit(seen), self.border))
        return pixel_shuffle(blocks, self.block)[:, :, : self.image_shape[1], : self.image_shape[2]]


class AttributeAdversary(nn.Module):
    """Guesses which of `classes` values an attribute has, from rows of shape `shape`: one score a value."""

    def __init__(self, shape: Shape, classes: int, width: int = 32):
        super().__init__()
        if len(shape) == 3:
            sides = [ceil(side / 2) for side in shape[1:]]
            self.layers = nn.Sequential(
                nn.Conv2d(shape[0], width, 3, stride=2, padding=1),
                _bend(),
                nn.Flatten(),
                nn.Linear(width * prod(sides), 2 * width),
                _bend(),
                nn.Linear(2 * width, classes),
            )
        else:
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(prod(shape), 4 * width), _bend(), nn.Linear(4 * width, classes)
            )

    def forward(self, seen: Tensor) -> Tensor:
        scores: Tensor = self.layers(_unit(seen))
        return scores


class Opponent(nn.Module):
    """An adversary, its loss, and the gradient it sends back.

    `forward(seen, batch, factor)` is the adversary's mean loss: its own weights descend it, what `seen` came from
    climbs it, `factor` times as fast. Minus a loss has no lower end, so no row is pushed beyond chance: where the
    adversary already does no better on a row than one that never saw it, nothing comes back for this row. What the
    rest climbs is mean(min(loss, chance)).
    """

    def __init__(self, shape: Shape, task: Task, attribute: str | None, width: int):
        super().__init__()
        self.attribute = attribute
        self.notes: dict[str, Tensor] = {}  # of the last step; its loss is in the history anyway
        if attribute is None:
            self.adversary: nn.Module = ImageAdversary(shape, task.shape, width)
        else:
            self.adversary = AttributeAdversary(shape, task.attributes[attribute], width)

    def forward(self, seen: Tensor, batch: Batch, factor: float) -> Tensor:
        # How strongly each row is pushed is known once the adversary has spoken, and needed in the backward pass.
        guess = self.adversary(reverse(seen, lambda: push))
        if self.attribute is None:
            losses, chance = (guess - deviations(batch.x.to(guess))).square().flatten(1).mean(1), 1.0
        else:
            truth = _values(batch, self.attribute).to(guess.device)
            losses, chance = cross_entropy(guess, truth, reduction="none"), log(guess.shape[1])
            self.notes = {"adversary_accuracy": (guess.detach().argmax(1) == truth).double().mean()}
        push = factor * (losses.detach() < chance).to(seen.dtype)  # no graph in it: the graph holds on to it
        return losses.mean()


def check_opponent(guard: Spec, attribute: object, width: object) -> None:
    """Refuse settings of an adversary that no data can make right."""
    if attribute is not None and not (isinstance(attribute, str) and attribute):
        raise ValueError(
            f"{guard}: attribute is the name of a sensitive attribute of the data, or None for the input"
        )
    if type(width) is not int or width < 1:
        raise ValueError(f"{guard}: width is that of the adversary at home, from 1 up")


def opponent(guard: Spec, shape: Shape, task: Task | None, attribute: str | None, width: int) -> Opponent:
    """The opponent a guard asks for, or a ValueError that says what is missing."""
    task = need_task(guard, task)
    if attribute is not None and attribute not in task.attributes:
        known = ", ".join(task.attributes) or "none"
        raise ValueError(f"{guard} protects {attribute!r}, an attribute this data does not have; it has: {known}")
    if attribute is None and task.vocabulary:
        raise ValueError(
            f"{guard} guesses the input in squared error, and numbers of words are names, not amounts: name an "
            "attribute of the texts, or take NoPeek"
        )
    return Opponent(shape, task, attribute, width)


def _values(batch: Batch, attribute: str) -> Tensor:
    if attribute not in batch.s:
        known = ", ".join(batch.s) or "none"
        raise ValueError(f"this batch does not say {attribute!r} of its samples; it has: {known}: fill Batch.s")
    return batch.s[attribute].long()


def deviations(x: Tensor) -> Tensor:
    """Rows less their mean, in units of how far they are from it: to guess 0 is to guess the mean, at an error of 1.

    In these units the error is of the size of a cross-entropy, and trains as easily, whatever the scale of the data.
    """
    rows = x - x.mean(0)
    spread = rows.square().mean()
    # A lone row, or rows that are all alike, are their mean.
    return rows / torch.where(spread > 1e-8, spread, torch.ones_like(spread)).sqrt()


def _unit(seen: Tensor) -> Tensor:
    """In units of its own size, so that shrinking everything hides nothing from the adversary."""
    return seen / seen.detach().square().mean().sqrt().clamp_min(1e-6)


def _halves(missing: int) -> tuple[int, int]:
    return missing // 2, missing - missing // 2


def _bend() -> nn.Module:
    return nn.LeakyReLU(0.1)
