"""Claims: sentences about what leaves, each with the check that would find it false."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...core.guard import Shape

if TYPE_CHECKING:
    from ..base import Guard


class Sent(NamedTuple):
    """One batch, as a claim is held against it."""

    read: Tensor  # what the guard that claims was given
    seen: Tensor  # what left in the end, behind all guards of a chain
    rows: Tensor | None  # for each sample the row of `seen` that stands for it; None: its own
    size: int  # bytes that `seen` takes on the wire, without the header of its message


def only_untouched(later: "Guard", shape: Shape) -> bool:
    """No guard that changes what leaves keeps such a claim."""
    return False


class Claim(NamedTuple):
    """What may be said of what leaves, whatever the data and whoever reads it."""

    text: str  # the sentence, in one line
    holds: Callable[[Sent], bool]  # whether it is true of a batch
    # Whether it stays true behind a later guard that changes what leaves, and reads this shape. A chain keeps a claim
    # only where the claim itself says so.
    survives: Callable[["Guard", Shape], bool] = only_untouched


def rank(kept: int, width: int) -> Claim:
    """Of a guard that makes `kept` numbers of `width`: what leaves lies in that many dimensions."""

    def holds(sent: Sent) -> bool:
        return int(torch.linalg.matrix_rank(sent.seen.detach().flatten(1).double())) <= kept

    return Claim(f"rank {kept} of {width}", holds, lambda later, shape: prod(later.out_shape(shape)) <= kept)
