"""Laws of data sources. What a set must be like to be learnt from at all, `Loaded` refuses by itself."""

from dataclasses import fields, replace
from typing import Any, cast

from ...core.seeds import seeded
from ...data.base import About, Loaded, MissingData, Source
from ...data.fingerprint import fingerprint
from ...training.laws import need
from .toys import Skipped


def _read(source: Source, seed: int = 0) -> Loaded:
    """The set, in a process that has drawn other random numbers before."""
    try:
        with seeded(seed):
            return source.load()
    except MissingData as error:
        raise Skipped(f"its files are not here: {error}") from error


def says_what_it_is(source: Source) -> None:
    """it has the field `limit` and says what is known of it: about = About(name, licence)"""
    need(
        "limit" in {field.name for field in fields(cast(Any, source))},
        "it has no field `limit: int | None = None`, by which fewer samples are asked for",
    )
    need(isinstance(getattr(source, "about", None), About), "it has no about: ClassVar[About] = About(name, licence)")


def is_the_same_twice(source: Source) -> None:
    """read again, in another process, it is the same set: runs are taken up again, and audits share their work"""
    one, other = (fingerprint(loaded.train, loaded.test) for loaded in (_read(source, 1), _read(source, 2)))
    need(one == other, "read twice it is two sets: draw what is drawn from a generator with a seed of its own")


def keeps_to_its_limit(source: Source) -> None:
    """limit=N keeps N training samples and the whole test set"""
    whole = _read(source)
    wanted = max(len(whole.classes), len(whole.train) // 2)
    if wanted >= len(whole.train):
        raise Skipped("it has one sample a class, and fewer cannot be asked for")
    fewer: Source = replace(cast(Any, source), limit=wanted)
    less = _read(fewer)
    need(len(less.train) == wanted, f"limit={wanted} leaves {len(less.train)} training samples: load() sees to it")
    need(
        len(less.test) == len(whole.test), f"limit={wanted} leaves {len(less.test)} of {len(whole.test)} test samples"
    )


LAWS = (says_what_it_is, is_the_same_twice, keeps_to_its_limit)
