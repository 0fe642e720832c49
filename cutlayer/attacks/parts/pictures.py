"""Pictures out of rows whose own images are known: a linear, a convolutional and a fully connected reader."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...metrics.images import ncc, ssim
from ...metrics.readers import (
    SMALLEST_FOR_SSIM,
    Before,
    Chosen,
    ConvReader,
    MLPReader,
    Reader,
    best_reader,
    fit,
    ridge,
)

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


def learn_to_read(spec: Effort, seen: Tensor, images: Tensor, held: int, undo: nn.Module | None, seed: int) -> Chosen:
    """The reader of `seen` that does best on the first `held` images, from which none of them learns."""
    kept = slice(held, None)

    def train(name: str) -> Reader | None:
        image = tuple(images.shape[1:])
        if name == "ridge":
            return ridge(seen[kept], images[kept], seen[:held], images[:held])
        if name == "mlp":
            flat = seen[kept].flatten(1)
            mlp = MLPReader(tuple(flat.shape[1:]), image, spec.hidden).to(seen)
            return Before(nn.Flatten(), fit(mlp, flat, images[kept], steps=spec.steps))
        with torch.no_grad():
            maps = seen[kept] if undo is None else undo(seen[kept])
        if maps.dim() != 4:
            return None
        conv = ConvReader(tuple(maps.shape[1:]), image, spec.width).to(seen)
        return Before(undo, fit(conv, maps, images[kept], steps=spec.steps))

    return best_reader(spec, spec.readers, seen, seed, train, lambda read: quality(read(seen[:held]), images[:held]))


def linear_error(seen: Tensor, images: Tensor, held: int) -> float:
    """What the linear reader misses on the first `held` images: a cheap sign of how much rows tell."""
    read = ridge(seen[held:], images[held:], seen[:held], images[:held])
    return float((read(seen[:held]) - images[:held]).square().mean())


def quality(guess: Tensor, truth: Tensor) -> float:
    measure = ssim if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else ncc
    return float(measure(guess, truth).mean())


def refuse_strange(readers: Sequence[str]) -> None:
    if not readers or set(readers) - set(READERS):
        raise ValueError(f"readers are among {', '.join(READERS)}; got {readers}")
