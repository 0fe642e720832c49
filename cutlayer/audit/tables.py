"""What an audit of tables, series or texts asks of the data, and columns as secrets: known before any training."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..attacks import Attack
from ..core.columns import Column, unnamed
from ..data.base import Loaded, Parts, Samples
from ..metrics.columns import STILL
from ..training.batches import task_of

MOST_COPIES = 0.1  # of the auxiliary records: more of them say that records repeat by nature
BINS = 5  # that a number is guessed in, as many records in each
MOST_VALUES = 16  # of whole numbers that are taken for kinds; of more, their bins are guessed


def refuse_unfit(loaded: Loaded, aux: int) -> None:
    """Records, series or texts that no audit can say anything about."""
    what = task_of(loaded.train, 0).kind
    if len(loaded.train.y.unique()) < 2:
        raise ValueError(
            f"all {what} have the class {loaded.classes[int(loaded.train.y[0])]!r}, so there is no task to split: "
            "take a target of two values or more"
        )
    if what != "records":
        return
    columns = _columns(loaded)
    if len(still(loaded)) == len(columns):
        raise ValueError(
            f"none of the {len(columns)} columns changes from record to record: there is nothing to read"
        )
    if aux < len(columns):
        raise ValueError(
            f"the attacker has {aux} auxiliary records for {len(columns)} columns, too few to learn to read them: "
            f"set more aside (--aux-samples, at least {len(columns)}), or load more records"
        )


def still(loaded: Loaded) -> list[str]:
    """Columns that never change among the training records."""
    if task_of(loaded.train, 0).kind != "records":
        return []
    rows = loaded.train.images()
    return [column.name for column in _columns(loaded) if column.of(rows).std(0, correction=0).max() < STILL]


def without_copies(data: Parts) -> tuple[Parts, int]:
    """The same without auxiliary records that equal a private one, and how many these were.

    What an attacker has seen before it need not read. Where records repeat anyway, because they have few columns,
    they stay: equal is not the same.
    """
    if data.aux.x.dim() != 2 or not len(data.aux):
        return data, 0
    private = {row.numpy().tobytes() for row in data.private.x}
    copies = torch.tensor([row.numpy().tobytes() in private for row in data.aux.x])
    if not copies.any() or copies.double().mean() > MOST_COPIES:
        return data, 0
    return replace(data, aux=data.aux[(~copies).nonzero().flatten()]), int(copies.sum())


def _columns(loaded: Loaded) -> tuple[Column, ...]:
    return loaded.train.columns or unnamed(loaded.train.x.shape[1])


def with_secret_columns(loaded: Loaded, attacks: Iterable[Attack]) -> Loaded:
    """The same data, in which every column that an attack is after is a sensitive attribute.

    Categories are guessed as they are, numbers in bins of about as many training records each. A column may be an
    input of the network, or one that was withheld from it (an attribute already).
    """
    if loaded.train.x.dim() == 4:
        return loaded
    wanted = {str(attack.attribute) for attack in attacks if hasattr(attack, "attribute")}  # type: ignore[attr-defined]
    inputs = {column.name: column for column in loaded.train.columns}
    train, test = dict(loaded.train.s), dict(loaded.test.s)
    if inputs and (strange := sorted(wanted - inputs.keys() - train.keys())):
        raise ValueError(
            f"there is no column {strange[0]!r} to guess (labels are the target's); there is "
            f"{', '.join([*inputs, *train])}"
        )
    for name in sorted(wanted & (inputs.keys() | train.keys())):
        own, other = _values(loaded.train, name, inputs), _values(loaded.test, name, inputs)
        if own.is_floating_point() or len(own.unique()) > MOST_VALUES:
            ends = edges(own)
            own, other = (torch.bucketize(values.double(), ends, right=True) for values in (own, other))
        train[name], test[name] = own, other
    return replace(loaded, train=replace(loaded.train, s=train), test=replace(loaded.test, s=test))


def _values(samples: Samples, name: str, inputs: dict[str, Column]) -> Tensor:
    return samples.s[name] if name in samples.s else inputs[name].coded(samples.images())


def edges(values: Tensor) -> Tensor:
    """Between which numbers one bin ends and the next begins. Equal ones are one: a bin is never empty by that."""
    return torch.quantile(values.double(), torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]).unique()
