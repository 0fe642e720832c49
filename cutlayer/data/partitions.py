"""Which client holds which samples: by chance, by label or by identity."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import derive, generator
from ..core.spec import Spec
from .base import Samples
from .refill import any_samples, of_own_labels, whole_identities

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
        _check_minimum(self.minimum)

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        _need_classes(self, samples)
        # numpy's sampler stays exact for tiny alpha, where normalised gamma draws underflow to 0/0.
        random = np.random.default_rng(seed)

        def deal() -> Tensor:
            owner = self._draw(samples.y, clients, random)
            return any_samples(owner, clients, self.minimum, random) if self.refill else owner

        return _enough(self, deal, len(samples), clients)

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
    """Every client holds exactly m of the labels; those who share a label share its samples evenly.

    With `refill` small clients get samples of labels they hold from others, who keep one of each at least.
    """

    m: int
    minimum: int = 1  # as for `Dirichlet`
    refill: bool = False

    def __post_init__(self) -> None:
        _check_minimum(self.minimum)
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

        def deal() -> Tensor | None:
            owner = self._draw(samples, clients, labels, sizes, draw)
            return of_own_labels(owner, samples.y, clients, self.minimum, draw) if self.refill else owner

        return _enough(self, deal, len(samples), clients)

    def _draw(self, samples: Samples, clients: int, labels: Tensor, sizes: Tensor, draw: torch.Generator) -> Tensor:
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
    """All samples of a person, writer or device stay with one client; identities are dealt out evenly.

    With `refill` small clients get whole persons of the largest ones.
    """

    minimum: int = 1  # as for `Dirichlet`
    refill: bool = False

    def __post_init__(self) -> None:
        _check_minimum(self.minimum)

    def _owners(self, samples: Samples, clients: int, seed: int) -> Tensor:
        if samples.identity is None:
            raise ValueError(
                "ByIdentity needs samples that say whom they belong to; these do not: choose a source with "
                "identities (Faces with its identity, an .npz file with an array `identity`) or IID()"
            )
        people, who, sizes = samples.identity.unique(return_inverse=True, return_counts=True)
        if len(people) < clients:
            raise ValueError(f"{len(people)} identities cannot fill {clients} clients: use {len(people)} or fewer")
        draw = generator(seed)

        def deal() -> Tensor | None:
            owner = torch.randperm(len(people), generator=draw) % clients
            refilled = whole_identities(owner, sizes, clients, self.minimum) if self.refill else owner
            return None if refilled is None else refilled[who]

        return _enough(self, deal, len(samples), clients)


def _check_minimum(minimum: object) -> None:
    if not isinstance(minimum, int) or minimum < 1:
        raise ValueError(f"minimum is the fewest samples a client may have, at least 1; got {minimum}")


def _enough(
    partition: Dirichlet | Labels | ByIdentity, deal: Callable[[], Tensor | None], count: int, clients: int
) -> Tensor:
    """The first deal that leaves everyone the minimum; None is one that could not be refilled."""
    for _ in range(TRIES if clients * partition.minimum <= count else 0):
        owner = deal()
        if owner is not None and owner.bincount(minlength=clients).min() >= partition.minimum:
            return owner
    ways = ["raise alpha"] if isinstance(partition, Dirichlet) else []
    ways += ["lower minimum"] if partition.minimum > 1 else []
    ways += [] if partition.refill else ["give refill=True"]
    raise ValueError(
        f"{partition!r}: no draw gave {clients} clients {partition.minimum} or more of {count} samples: "
        f"{''.join(f'{way}, ' for way in ways)}{'or ' if ways else ''}use fewer clients or more samples"
    )


def _need_classes(partition: Partition, samples: Samples) -> None:
    if samples.y.dim() > 1:
        what = "place" if samples.vocabulary else "pixel"
        raise ValueError(f"{partition} goes by the class of a sample, and here every {what} has its own: use IID()")


def _holders(labels: int, clients: int, m: int, draw: torch.Generator) -> Tensor:
    """A clients x labels table with m marks a row; every label is marked equally often, to within one."""
    holds = torch.zeros(clients, labels, dtype=torch.bool)
    for client in range(clients):
        # Always the labels held least so far, ties by lot: this is what leaves none without a holder.
        lot = torch.rand(labels, generator=draw)
        holds[client, (holds.sum(0) + lot).argsort()[:m]] = True
    # Dealt in this order, the first clients would always hold all labels between them: who is who is drawn, too.
    return holds[torch.randperm(clients, generator=draw)]
