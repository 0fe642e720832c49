"""A codec: fewer bytes for the same tensor, below autograd, bit-exact in both directions."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...core.spec import Spec


@dataclass(frozen=True, repr=False)
class Codec(Spec):
    """`decode(encode(t), t.dtype, t.shape)` equals `t` bit for bit. `tag` names the codec on the wire."""

    tag: ClassVar[int]

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError

    def size(self, tensor: Tensor) -> int:
        """How many bytes `encode` would give. Cheap where it can be: the ledger asks at every message."""
        return len(self.encode(tensor))

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError


class Prepared(Protocol):
    """The bytes of one tensor, as only whoever made it can write them: it knows the few numbers it is made of.

    `BY_TAG[tag].decode` gives the tensor back, bit for bit.
    """

    @property
    def tag(self) -> int: ...

    def size(self) -> int:
        """How many bytes `encode` gives, without doing it."""

    def encode(self) -> memoryview: ...
