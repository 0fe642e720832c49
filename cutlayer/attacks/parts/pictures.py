"""Readers of rows whose own inputs are known: a linear, a convolutional and a fully connected one."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...metrics.readers import Before, ConvReader, MLPReader, Reader, fit, picture_quality, ridge
from ...metrics.row_readers import Pairs, Size, likeness, train_reader
from ...metrics.text_readers import train_text_reader
from ...metrics.texts import token_accuracy

READERS = ("ridge", "conv", "mlp")


class Effort(Protocol):
    """How long readers learn, and how wide they are."""

    @property
    def steps(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def readers(self) -> tuple[str, ...]: ...


def reader_of(name: str, spec: Effort, pairs: Pairs, undo: nn.Module | None) -> Reader | None:
    """The reader of this name, trained; None: it cannot read such messages."""
    seen, images = pairs.seen, pairs.truth
    if not images.is_floating_point():
        return train_text_reader(name, Size(spec.steps, spec.width, spec.hidden), pairs, undo)
    if images.dim() != 4:  # records or series
        return train_reader(name, Size(spec.steps, spec.width, spec.hidden), pairs, undo)
    image = tuple(images.shape[1:])
    if name == "ridge":
        return ridge(*pairs)
    if name == "mlp":
        flat = seen.flatten(1)
        mlp = MLPReader(tuple(flat.shape[1:]), image, spec.hidden).to(seen)
        return Before(nn.Flatten(), fit(mlp, flat, images, steps=spec.steps))
    # A convolution reads a map: undo the guard's public transform first, if there is one.
    with torch.no_grad():
        maps = seen if undo is None else undo(seen)
    if maps.dim() != 4:
        return None
    conv = ConvReader(tuple(maps.shape[1:]), image, spec.width).to(seen)
    return Before(undo, fit(conv, maps, images, steps=spec.steps))


def linear_error(seen: Tensor, images: Tensor, held: int) -> float:
    """What the linear reader misses on the first `held` images: a cheap sign of how much rows tell."""
    read = ridge(seen[held:], images[held:], seen[:held], images[:held])
    return float((read(seen[:held]) - images[:held]).square().mean())


def quality(guess: Tensor, truth: Tensor) -> float:
    """What readers are compared by: what the judge scores."""
    if not truth.is_floating_point():
        return float(token_accuracy(truth, guess).mean())
    return picture_quality(guess, truth) if truth.dim() == 4 else float(likeness(truth, guess).mean())


def refuse_strange(readers: Sequence[str], known: Sequence[str] = READERS) -> None:
    if not readers or set(readers) - set(known):
        raise ValueError(f"readers are among {', '.join(known)}; got {readers}")
