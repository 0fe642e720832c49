"""Film reviews, good or bad, as hashed bags of words."""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .base import About, Loaded, Samples, Source
from .imdb_files import CLASSES, FORMS, LICENCE, ORIGIN, SIZES, read_reviews
from .text_files import TextRows

MARKUP, WORD = re.compile(r"<[^<>]{1,20}>"), re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


@dataclass(frozen=True, repr=False)
class Reviews(Source):
    """Film reviews (IMDB), 2,048 features, 8,000 + 4,000, 2 classes; lines of JSON in imdb/ or aclImdb/.

    A text is lowered and cut into words; a word goes to the feature CRC-32(word) modulo `features`. A feature is
    log(1 + how often its words occur), and each row is scaled to length 1: floats, none below 0, alike everywhere.
    """

    about: ClassVar[About] = About(
        name="Large Movie Review Dataset (IMDB)",
        licence=LICENCE,
        origin=ORIGIN,
        shape=(2048,),
        classes=2,
        sizes=SIZES,
        forms=FORMS,
    )

    features: int = 2048
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.features) is not int or self.features < 1:
            raise ValueError(f"features is how many numbers describe a text, at least 1; got {self.features!r}")

    def read(self, folder: Path | None) -> Loaded:
        places = _Places(self.features)
        train, test = (as_bags(rows, places) for rows in read_reviews(folder))
        return Loaded(train, test, CLASSES)


class _Places(dict[str, int]):
    """The feature of a word, worked out once."""

    def __init__(self, features: int):
        self.features = features

    def __missing__(self, word: str) -> int:
        return self.setdefault(word, zlib.crc32(word.encode()) % self.features)


def bag(text: str, places: _Places) -> np.ndarray:
    """A text as numbers; one without a word is all zeros."""
    words = WORD.findall(MARKUP.sub(" ", text.lower()))
    counts = np.bincount([places[word] for word in words], minlength=places.features) if words else None
    row = np.log1p(counts if counts is not None else np.zeros(places.features)).astype(np.float32)
    return row / max(np.linalg.norm(row), np.finfo(np.float32).tiny)


def as_bags(rows: TextRows, places: _Places) -> Samples:
    """A sample for each text."""
    return Samples(torch.from_numpy(np.stack([bag(text, places) for text in rows.texts])), torch.tensor(rows.labels))
