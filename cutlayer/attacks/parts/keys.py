"""Whose key an attacker puts into its copy of a guard that has a secret one. The same words for every attack."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from ...core.guard import GuardModule
from ...core.seeds import derive
from ...guards import SEAL, Chain, Guard
from ..base import KnownGuard
from .seal_keys import install, recover

# own: one of the attacker's drawing. cosine: none at all, but the instance that everybody would try first (the DCT).
# mixture: many of its drawing in turn, so that nothing it learns relies on one. recovered: the one that the messages
# give away (`seal_keys`), or where they do not the mixture. true: the client's, which no server has: a ceiling.
KEYS = ("own", "cosine", "mixture", "recovered", "true")


class Copies(NamedTuple):
    """Copies of the client's half of the guard, to be used in turn."""

    modules: Sequence[GuardModule]
    empty: float | None = None  # share of coefficients that are empty under a recovered key; None: none was found


def check_keys(keys: str, known: Sequence[str] = KEYS) -> None:
    if keys not in known:
        named = ", ".join(map(repr, filter(None, known)))
        raise ValueError(f"keys says whose key the attacker's copy of a guard has, one of {named}; got {keys!r}")


def copies_of(
    known: KnownGuard, keys: str, seeds: Sequence[int], seen: Tensor | None = None, seed: int = 0
) -> Copies:
    """Copies with such keys. `seeds` are those of a mixture, the first that of a single key; `seen` are the messages
    that a key is read off, under `seed`."""
    if keys == "true":
        if known.true_key is None:
            raise ValueError("the true key is the judge's to give, and this attacker was not given it")
        return Copies([known.copy(known.true_key)])
    if keys == "cosine":
        return Copies([replace(known, spec=with_cosine(known.spec)).copy(seeds[0])])
    if keys == "own":
        return Copies([known.copy(seeds[0])])
    if keys == "recovered" and seen is not None:
        return recovered(known, seeds, seen, seed)
    return Copies([known.copy(one) for one in seeds])


def recovered(known: KnownGuard, seeds: Sequence[int], seen: Tensor, seed: int) -> Copies:
    """One copy with the key that the messages show; if they show none, the mixture is the next best."""
    seal = next((part for part in known.spec.stages() if isinstance(part, SEAL) and part.has_key), None)
    key = recover(seen, seal, derive(seed, "recovery")) if seal is not None else None
    if key is None:
        return Copies([known.copy(one) for one in seeds])
    copy = known.copy(seeds[0])
    install(key, copy)
    return Copies([copy], key.empty)


def with_cosine(guard: Guard) -> Guard:
    """The guard as somebody builds it who takes the secret transform for the cosine's."""
    parts = [
        replace(part, wave="cosine") if isinstance(part, SEAL) and part.has_key else part for part in guard.stages()
    ]
    if other := next((part for part in parts if part.has_key), None):
        raise ValueError(f"keys='cosine' guesses SEAL's wave, and {other} has another secret: take keys='own'")
    return parts[0] if len(parts) == 1 else Chain(*parts)
