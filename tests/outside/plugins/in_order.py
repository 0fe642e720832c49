"""The first samples to the first client."""

from dataclasses import dataclass

import torch

from cutlayer.data import Partition


@dataclass(frozen=True, repr=False)
class InOrder(Partition):
    """Samples in the order they lie in, in equal shares."""

    def _owners(self, samples, clients, seed):
        return torch.arange(len(samples)) * clients // len(samples)
