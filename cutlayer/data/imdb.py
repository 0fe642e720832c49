"""Film reviews, good or bad, as token ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, CorruptData, Loaded, find
from .reviews import FILES
from .text_files import TextRows, read_texts
from .texts import Cut, TextSource


@dataclass(frozen=True, repr=False)
class IMDB(TextSource):
    """Film reviews (IMDB), their first `length` token ids, 8,000 + 4,000, 2 classes; gzipped lines of JSON in imdb/.

    Words and signs in small letters, the commonest `vocabulary` of the training reviews, or those of the file
    `words`. With next_token=True the labels are the texts themselves, a token on.
    """

    about: ClassVar[About] = About(
        name="Large Movie Review Dataset (IMDB), as texts",
        licence="none stated (Maas et al., 2011); the texts belong to their writers",
        origin='A line is {"label": 0 or 1, "text": "..."}.',
        shape=(128,),
        classes=2,
        sizes=((8_000, 4_000), (25_000, 25_000)),
        forms=(FILES,),
    )

    length: int = 128
    vocabulary: int = 5000
    words: str = ""
    next_token: bool = False
    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        train, test = (read_texts(find(folder, name, origin=self.about.origin), "text", "label") for name in FILES)
        tokenizer = self.tokenizer(folder, train.texts)
        cut = Cut()
        learnt, held = (self.encoded(rows, tokenizer, _labels(rows), cut) for rows in (train, test))
        return Loaded(learnt, held, self.class_names(tokenizer, ("negative", "positive")), notes=self.notes(cut))


def _labels(rows: TextRows) -> torch.Tensor:
    for row, label in enumerate(rows.labels):
        if label not in (0, 1):
            raise CorruptData(rows.path, f"line {row + 1} should have a label 0 or 1, it is {label!r}")
    return torch.tensor(rows.labels)
