"""What a client holds, and its way to the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.message import Handler
from ..data.base import Samples
from ..data.rows import at
from ..wire.ledger import Ledger
from .micro_batches import Post
from .step import Learn, learn


@dataclass(frozen=True)
class OwnData:
    """Samples of `pool`, all of them or those that `share` names, and what is held out by purpose."""

    pool: Samples
    held_out: Mapping[str, Samples]
    share: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.pool if self.share is None else self.share)

    @property
    def labels(self) -> Tensor:
        """Of its samples, without a look at these."""
        return self.pool.y if self.share is None else at(self.pool.y, self.share)

    def samples(self) -> Samples:
        """Its own; those of a share are copied out of the pool."""
        return self.pool if self.share is None else self.pool[self.share]

    def places(self, index: Tensor) -> Tensor:
        """Where in the pool these of its samples are."""
        return index if self.share is None else self.share[index]

    def first(self, most: int) -> Tensor:
        """Which samples of the pool the first `most` of its own are."""
        return (torch.arange(len(self.pool)) if self.share is None else self.share)[:most]


class Uplink(NamedTuple):
    """How a client reaches the server, and where it counts what crosses."""

    send: Handler
    ledger: Ledger
    post: Post | None = None  # send now, wait later; None: in one process there is nothing to wait for
    learn: Learn = learn  # how a step is made: an engine that has both sides at hand may know a faster way
