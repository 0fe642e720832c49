"""Fewer bits for a tensor that crosses, at the price of its last digits.

Below autograd, so gradients pass as if nothing had happened (a straight-through estimate). On the way up a guard does
it (`Quantize`, `TopK`), where it can be chained and audited; `down` and `back` of a plan do it to the other messages.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .spec import Spec


@dataclass(frozen=True, repr=False)
class Compressor(Spec):
    """Leaves a tensor as it is."""

    def compress(self, tensor: Tensor, draw: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """The tensor the other side will have, and the bytes for it (codecs.Prepared; None: whatever is smallest).

        Without a generator to `draw` from it takes torch's own: whoever calls has seeded that for this step.
        """
        return tensor, None
