"""Who may see which samples: private, validation, auxiliary (an attacker's) and test, never shared."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..core.seeds import derive, generator
from .meaning import Meaning
from .rows import at
from .samples import Loaded, Samples
from .scaling import Scale

UNLABELLED = ("unlabelled",)  # the classes of pictures that have none: an attacker's, and nobody's to learn


@dataclass(frozen=True, eq=False)
class Parts:
    """A data set cut into disjoint parts; `val` and `aux` may be empty."""

    private: Samples  # what the clients train on
    val: Samples
    aux: Samples  # training samples set aside for an attacker
    test: Samples
    scale: Scale | None = None  # that the inputs were put on
    notes: tuple[str, ...] = ()  # see Loaded
    meaning: Meaning = Meaning()  # what its numbers stand for


def parts(loaded: Loaded, *, aux: int, val: float, seed: int) -> Parts:
    """Set `aux` training samples aside for an attacker and a share `val` of the rest for validation."""
    if loaded.classes == UNLABELLED:
        raise ValueError(
            "these pictures have no classes, so there is nothing to learn: they are an attacker's (--aux-data); "
            "ImageFolder reads pictures in a folder for each class"
        )
    total = len(loaded.train)
    if not 0 <= aux < total:
        raise ValueError(
            f"aux_samples is how many of the {total} training samples an attacker holds, 0 to {total - 1}; got {aux}"
        )
    if not 0 <= val < 1:
        raise ValueError(f"val_share is the share of the remaining samples held out, in [0, 1); got {val}")
    held = round(val * (total - aux))
    if held == total - aux or (val > 0 and held == 0):
        raise ValueError(
            f"val_share={val} of the {total - aux} samples that aux_samples={aux} leaves is {held} for validation "
            f"and {total - aux - held} for training: load more samples, lower aux_samples, or set val_share to 0"
        )
    rows = torch.arange(total)
    attacker = stratified(loaded.train.y, aux, derive(seed, "aux"))
    rest = _without(rows, attacker)
    validation = rest[stratified(at(loaded.train.y, rest), held, derive(seed, "val"))]
    return Parts(
        private=loaded.train[_without(rest, validation)],
        val=loaded.train[validation],
        aux=loaded.train[attacker],
        test=loaded.test,
        scale=loaded.scale,
        notes=loaded.notes,
        meaning=Meaning.of(loaded),
    )


def stratified(y: Tensor, count: int, seed: int) -> Tensor:
    """`count` rows, sorted, in which each class has its share of `y` to within one row.

    Where every pixel has a class, rows have none, and they are drawn from all alike.
    """
    y = y if y.dim() == 1 else torch.zeros(len(y), dtype=torch.int64)
    order = torch.randperm(len(y), generator=generator(seed))
    labels, sizes = y.unique(return_counts=True)
    share = sizes.double() * count / max(len(y), 1)
    quota = share.floor().long()
    # Largest remainder: what rounding down left over goes to the classes that lost most by it.
    short = (quota - share).argsort(stable=True)[: count - int(quota.sum())]
    quota[short] += 1
    ranked = y[order]
    picked = [order[ranked == label][:size] for label, size in zip(labels, quota.tolist(), strict=True)]
    return torch.cat([*picked, order[:0]]).sort().values


def carve(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on, and a tenth of every class to test on, for sets that come in one piece."""
    if len(y) < 2:
        raise ValueError("one sample cannot be both trained on and tested: give more samples, or a test set")
    test = stratified(y, max(1, round(len(y) / 10)), seed)
    return _without(torch.arange(len(y)), test), test


def refuse_one_class(path: Path, y: Tensor, where: str) -> None:
    """A network that may always say the same learns nothing, and scores 1."""
    if len(y) > 1 and len(y.unique()) == 1:
        raise ValueError(
            f"{where} of {path} has one class only in {len(y)} rows, so there is nothing to learn: add rows of "
            "another class, or name another target"
        )


def overlap(a: Samples, b: Samples) -> int:
    """How many distinct images occur, value for value, in both `a` and `b`."""
    if a.x.shape[1:] != b.x.shape[1:]:
        return 0
    # The same picture may be kept as bytes here and as floats there.
    as_bytes = a.x.dtype != b.x.dtype
    return len(_fingerprints(a, as_bytes) & _fingerprints(b, as_bytes))


def distinct(loaded: Loaded) -> Loaded:
    """The set without training images that are, value for value, also in the test set or earlier in the training set.

    Where a set holds an image twice, one copy may become private and the other an attacker's.
    """
    seen = _fingerprints(loaded.test, as_bytes=False)
    new = []
    for mark in map(_fingerprint, loaded.train.x):
        new.append(mark not in seen)
        seen.add(mark)
    return replace(loaded, train=loaded.train[torch.tensor(new)])


def _fingerprints(samples: Samples, as_bytes: bool) -> set[bytes]:
    return {_fingerprint(_to_bytes(x) if as_bytes and x.is_floating_point() else x) for x in samples.x}


def _to_bytes(x: Tensor) -> Tensor:
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def _fingerprint(x: Tensor) -> bytes:
    return hashlib.blake2b(x.cpu().numpy().tobytes(), digest_size=16).digest()


def _without(rows: Tensor, taken: Tensor) -> Tensor:
    return rows[~torch.isin(rows, taken)]
