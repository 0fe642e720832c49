"""Film reviews, good or bad, as hashed bags of words."""

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .base import About, CorruptData, Loaded, Samples, Source, find

FILES = ("imdb/train.jsonl.gz", "imdb/test.jsonl.gz")
MARKUP, WORD = re.compile(r"<[^<>]{1,20}>"), re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


@dataclass(frozen=True, repr=False)
class Reviews(Source):
    """Film reviews (IMDB), 2,048 features, 8,000 + 4,000, 2 classes; lines of JSON, gzipped, in imdb/.

    A text is lowered and cut into words; a word goes to the feature CRC-32(word) modulo `features`. A feature is
    log(1 + how often its words occur), and each row is scaled to length 1: floats, none below 0, alike everywhere.
    """

    about: ClassVar[About] = About(
        name="Large Movie Review Dataset (IMDB)",
        licence="none stated (Maas et al., 2011); the texts belong to their writers",
        origin='A line is {"label": 0 or 1, "text": "..."}.',
        shape=(2048,),
        classes=2,
        sizes=((8_000, 4_000), (25_000, 25_000)),
        forms=(FILES,),
    )

    features: int = 2048
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.features) is not int or self.features < 1:
            raise ValueError(f"features is how many numbers describe a text, at least 1; got {self.features!r}")

    def read(self, folder: Path | None) -> Loaded:
        train, test = (find(folder, name, origin=self.about.origin) for name in FILES)
        places = _Places(self.features)
        return Loaded(read_texts(train, places), read_texts(test, places), ("negative", "positive"))


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


def read_texts(path: Path, places: _Places) -> Samples:
    """A sample for each line of `path`."""
    rows, labels = [], []
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                text, label = _line(path, number, line)
                rows.append(bag(text, places))
                labels.append(label)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptData(path, f"the gzip stream is damaged or cut short ({error})") from error
    if not rows:
        raise CorruptData(path, "it holds no line")
    return Samples(torch.from_numpy(np.stack(rows)), torch.tensor(labels))


def _line(path: Path, number: int, line: bytes) -> tuple[str, int]:
    try:
        content = json.loads(line)
        text, label = content["text"], content["label"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptData(path, f"line {number} is not a text and its label ({error})") from error
    if not isinstance(text, str) or label not in (0, 1):
        raise CorruptData(path, f"line {number} should have a text and a label 0 or 1, the label is {label!r}")
    return text, int(label)
