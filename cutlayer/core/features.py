"""What a head makes of a batch: z, and what has to cross beside it for the layers behind the cut to read it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .message import BESIDE


class Features(NamedTuple):
    """z, and named tensors beside it, one row a sample: a mask says which tokens are no padding.

    A head returns these, or z alone. Body and tail take what is beside z as keywords. A guard reads z; what is beside
    it leaves as it is, so it is nothing that needs guarding, or it is not sent.
    """

    z: Tensor
    beside: Mapping[str, Tensor] = {}  # never written to


class Form(NamedTuple):
    """What a tensor beside z looks like: the shape of one sample's row, and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def features(made: Any) -> Features:
    """What a head has made, with nothing beside z where it said nothing."""
    if not isinstance(made, Features):
        return Features(made)
    for name, tensor in made.beside.items():
        if len(tensor) != len(made.z) or tensor.requires_grad:
            raise ValueError(
                f"{name!r} goes beside z, so it has a row for each of {len(made.z)} samples and wants no gradient; "
                f"it has {len(tensor)} rows{' and wants one: detach it' if tensor.requires_grad else ''}"
            )
    return made


def on_the_way(beside: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names that a message has for them."""
    return {f"{BESIDE}{name}": tensor for name, tensor in beside.items()}


class Unchanged(nn.Module):
    """A part that does nothing, whatever is beside z."""

    draws_nothing = True

    def forward(self, z: Tensor, **beside: Tensor) -> Tensor:
        return z


class Chained(nn.Sequential):
    """Parts of a cut network one behind the other; what is beside z is given to all later ones."""

    def forward(self, x: Tensor) -> Any:
        first, *others = self
        z, beside = features(first(x))
        for part in others:
            z = part(z, **beside)
        return Features(z, beside) if beside else z
