"""Pictures of stripes, made as they are read."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from cutlayer.data import About, Loaded, Samples, Source


@dataclass(frozen=True, repr=False)
class Stripes(Source):
    """Stripes that lie or stand, in noise."""

    count: int = 60
    limit: int | None = None
    about: ClassVar[About] = About("Stripes", "made here", shape=(1, 16, 16), classes=2)

    def read(self, folder):
        return Loaded(_made(self.count, 1), _made(20, 2), ("lying", "standing"))


def _made(count: int, seed: int) -> Samples:
    draw, y = torch.Generator().manual_seed(seed), torch.arange(count) % 2
    x = 0.2 * torch.rand(count, 1, 16, 16, generator=draw)
    x[y == 0, :, 4:8] += 0.6
    x[y == 1, :, :, 4:8] += 0.6
    return Samples(x, y)
