"""Rows that stay on disk: they have a shape like a tensor's, and what is indexed is read. Nothing else is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

CHUNK = 256  # rows that are read at a time where all are gone through


class Store(ABC):
    """Where rows lie, numbered from 0. Whenever a row is read it is the same."""

    shape: tuple[int, ...]  # of one row
    dtype: torch.dtype

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def task(self, which: Tensor) -> Callable[[], Tensor]:
        """What makes these rows: small enough to be sent to another process, which needs nothing else."""

    def read(self, which: Tensor) -> Tensor:
        return self.task(which)()

    def soon(self, batches: Iterable[Tensor]) -> None:
        """These will be read next, in these pieces; a store that can get ready for it does."""
        return

    def streamed(self, memory: int, workers: int) -> "Store":
        """The same with `memory` bytes of rows kept, and made by so many processes."""
        from .streamed import Streamed

        return Streamed(self, memory, workers)

    @property
    def row_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Rows:
    """Some rows of a store, as a tensor would have them: indexing gives a tensor, `at` gives fewer rows unread."""

    def __init__(self, store: Store, which: Tensor | None = None, device: torch.device | str = "cpu"):
        self.store = store
        self.which = torch.arange(len(store)) if which is None else which
        self.device = torch.device(device)  # of the tensors that are read

    def __len__(self) -> int:
        return len(self.which)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.store.shape))

    @property
    def dtype(self) -> torch.dtype:
        return self.store.dtype

    def dim(self) -> int:
        return 1 + len(self.store.shape)

    def is_floating_point(self) -> bool:
        return self.store.dtype.is_floating_point

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        which = self.which[index.cpu() if isinstance(index, Tensor) else index]
        found = self.store.read(which.reshape(-1)).to(self.device)
        return found if which.dim() else found[0]

    def __iter__(self) -> Iterator[Tensor]:
        chunks = self.which.split(CHUNK)
        for place, some in enumerate(chunks):
            self.store.soon(chunks[place : place + 2])
            yield from self.store.read(some).to(self.device)

    def at(self, index: Tensor) -> "Rows":
        return Rows(self.store, self.which[index.cpu()], self.device)

    def to(self, device: torch.device | str) -> "Rows":
        """The same, to be read onto another device."""
        return Rows(self.store, self.which, device)

    def soon(self, batches: Iterable[Tensor]) -> None:
        """See `Store.soon`."""
        self.store.soon(self.which[index.cpu()] for index in batches)


def as_tensor(rows: Rows) -> Tensor:
    """Rows where a tensor is expected of which only shape, type and single rows are asked."""
    return cast(Tensor, rows)


def at(values: Tensor, index: Tensor) -> Tensor:
    """Fewer of them; those on disk stay there."""
    return as_tensor(values.at(index)) if isinstance(values, Rows) else values[index]


def pieces(values: Tensor) -> Iterator[Tensor]:
    """All of them: in one piece, or, from the disk, in such that fit into memory."""
    if isinstance(values, Rows):
        yield from (values[some] for some in torch.arange(len(values)).split(CHUNK))
    else:
        yield values


def changed(values: Tensor, chosen: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy in which the `chosen` rows are changed; those on disk are, whenever they are read."""
    if isinstance(values, Rows):
        marked = torch.zeros(len(values), dtype=torch.bool)
        marked[chosen] = True
        return as_tensor(Rows(_Changed(values, marked, change), device=values.device))
    copy = values.clone()
    copy[chosen] = change(copy[chosen])
    return copy


def soon(values: Tensor, batches: Sequence[Tensor]) -> None:
    if isinstance(values, Rows):
        values.soon(batches)


class _Changed(Store):
    def __init__(self, rows: Rows, marked: Tensor, change: Callable[[Tensor], Tensor]):
        self.rows, self.marked, self.change = rows, marked, change
        self.shape, self.dtype = rows.store.shape, rows.store.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def task(self, which: Tensor) -> Callable[[], Tensor]:
        return lambda: self.read(which)

    def read(self, which: Tensor) -> Tensor:
        found, marked = self.rows.store.read(self.rows.which[which]), self.marked[which]
        found[marked] = self.change(found[marked])
        return found

    def soon(self, batches: Iterable[Tensor]) -> None:
        self.rows.soon(batches)
