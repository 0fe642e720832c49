"""Which client holds which samples: by chance, by label or by identity."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import derive, generator
from ..core.spec import Spec
from .base import Samples

__all__ = ["IID", "ByIdentity", "Dirichlet", "Labels"]

TRIES = 100


class Partition(Spec, ABC):
    """Base of every partition: says for each sample which client owns it."""

    leaves_out: ClassVar[bool] = False  # some samples, or clients, get nobody or nothing, and that is meant

    def assign(self, samples: Samples, clients: int, seed: int) -> list[Tensor]:
        """Sorted row numbers for each client: disjoint, none empty, together everything."""
        if not 1 <= clients <= len(samples):
            raise ValueError(
                f"{len(samples)} samples can be shared by 1 to {len(samples)} clients; got {clients}: "
                "change the number of clients or load more samples"
            )
        owner = self._owners(samples, clients, derive(seed, "partition"))
        return [(owner == client).nonzero().flatten() for client in range(clients)]

    @abstractmethod
    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        """The client of every sample, each client at least once."""


@dataclass(frozen=True, repr=False)
class IID(Partition):
    """Everyone gets the same mixture: each class dealt out evenly, sizes within one sample."""

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        shuffled = torch.randperm(len(samples), generator=generator(seed))
        if samples.y.dim() > 1:  # every pixel has a class: nothing to deal by
            return shuffled % clients
        # One deal runs through all classes: what is left of each must not pile up at the first clients.
        dealt = shuffled[samples.y[shuffled].argsort(stable=True)]
        owner = torch.empty(len(samples), dtype=torch.int64)
        owner[dealt] = torch.arange(len(samples)) % clients
        return owner


@dataclass(frozen=True, repr=False)
class Dirichlet(Partition):
    """Each class is shared out by a draw from Dirichlet(alpha): a small alpha is skewed, a large one even."""

    alpha: float
    minimum: int = 1  # samples every client has at least: drawn again until it is so,
    refill: bool = False  # or taken from the largest clients. With equal shares everyone is in every round

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"alpha is how even the shares are, above 0 and finite; got {self.alpha}")
        if not isinstance(self.minimum, int) or self.minimum < 1:
            raise ValueError(f"minimum is the fewest samples a client may have, at least 1; got {self.minimum}")

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        _need_classes(self, samples)
        # numpy's sampler stays exact for tiny alpha, where normalised gamma draws underflow to 0/0.
        random = np.random.default_rng(seed)
        if self.refill and clients * self.minimum <= len(samples):
            return _refilled(self._draw(samples.y, clients, random), clients, self.minimum, random)
        for _ in range(TRIES if clients * self.minimum <= len(samples) else 0):
            owner = self._draw(samples.y, clients, random)
            if owner.bincount(minlength=clients).min() >= self.minimum:
                return owner
        raise ValueError(
            f"{self!r}: no draw gave {clients} clients {self.minimum} or more of {len(samples)} samples: "
            "raise alpha, lower minimum, give refill=True, or use fewer clients or more samples"
        )

    def _draw(self, y: Tensor, clients: int, random: np.random.Generator) -> Tensor:
        owner = torch.empty(len(y), dtype=torch.int64)
        for label in y.unique():
            rows = random.permutation((y == label).nonzero().flatten().numpy())
            shares = random.dirichlet([self.alpha] * clients)
            ends = (shares.cumsum()[:-1] * len(rows)).round().astype(int)
            # The order is drawn too: with even shares of small classes, rounding would otherwise starve
            # the same clients in every class.
            for client, part in zip(random.permutation(clients), np.split(rows, ends), strict=True):
                owner[torch.from_numpy(part)] = int(client)
        return owner


@dataclass(frozen=True, repr=False)
class Labels(Partition):
    """Every client holds exactly m of the labels; those who share a label share its samples evenly."""

    m: int

    def __post_init__(self) -> None:
        if not isinstance(self.m, int) or self.m < 1:
            raise ValueError(f"m is how many labels a client holds, at least 1; got {self.m}")

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        _need_classes(self, samples)
        labels, sizes = samples.y.unique(return_counts=True)
        if self.m > len(labels):
            raise ValueError(f"m={self.m} labels a client, but the samples have only {len(labels)}: lower m")
        if clients * self.m < len(labels):
            raise ValueError(
                f"{clients} clients with m={self.m} hold at most {clients * self.m} of {len(labels)} labels, "
                f"and samples would be left over: use m >= {-(-len(labels) // clients)} or more clients"
            )
        draw = generator(seed)
        holds = _holders(len(labels), clients, self.m, draw)
        owner = torch.empty(len(samples), dtype=torch.int64)
        for label, size, column in zip(labels, sizes, holds.T, strict=True):
            holders = column.nonzero().flatten()
            if size < len(holders):
                raise ValueError(
                    f"label {label} has {size} samples for {len(holders)} clients: "
                    "use fewer clients, a smaller m, or more samples"
                )
            rows = (samples.y == label).nonzero().flatten()
            owner[rows[torch.randperm(len(rows), generator=draw)]] = holders[torch.arange(len(rows)) % len(holders)]
        return owner


@dataclass(frozen=True, repr=False)
class ByIdentity(Partition):
    """All samples of a person, writer or device stay with one client; identities are dealt out evenly."""

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        if samples.identity is None:
            raise ValueError(
                "ByIdentity needs samples that say whom they belong to; these do not: choose a source with "
                "identities (Faces with its identity, an .npz file with an array `identity`) or IID()"
            )
        people, who = samples.identity.unique(return_inverse=True)
        if len(people) < clients:
            raise ValueError(f"{len(people)} identities cannot fill {clients} clients: use {len(people)} or fewer")
        return (torch.randperm(len(people), generator=generator(seed)) % clients)[who]


def _need_classes(partition: Partition, samples: Samples) -> None:
    if samples.y.dim() > 1:
        raise ValueError(f"{partition} goes by the class of a sample, and here every pixel has its own: use IID()")


def _refilled(owner: Tensor, clients: int, minimum: int, random: np.random.Generator) -> Tensor:
    """The smallest client gets some of the largest one's samples, by lot, until everyone has the minimum."""
    owner = owner.clone()
    while (sizes := owner.bincount(minlength=clients)).min() < minimum:
        small, large = int(sizes.argmin()), int(sizes.argmax())
        # No more than makes them equal: the largest may give to several.
        given = min(minimum - int(sizes[small]), max(1, int(sizes[large] - sizes[small]) // 2))
        rows = random.permutation((owner == large).nonzero().flatten().numpy())[:given]
        owner[torch.from_numpy(rows)] = small
    return owner


def _holders(labels: int, clients: int, m: int, draw: torch.Generator) -> Tensor:
    """A clients x labels table with m marks a row; every label is marked equally often, to within one."""
    holds = torch.zeros(clients, labels, dtype=torch.bool)
    for client in range(clients):
        # Always the labels held least so far, ties by lot: this is what leaves none without a holder.
        lot = torch.rand(labels, generator=draw)
        holds[client, (holds.sum(0) + lot).argsort()[:m]] = True
    # Dealt in this order, the first clients would always hold all labels between them: who is who is drawn, too.
    return holds[torch.randperm(clients, generator=draw)]
