"""Film reviews, good or bad, as token ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, Loaded
from .imdb_files import CLASSES, FORMS, LICENCE, ORIGIN, SIZES, read_reviews
from .texts import Cut, TextSource


@dataclass(frozen=True, repr=False)
class IMDB(TextSource):
    """Film reviews (IMDB), first `length` token ids, 8,000 + 4,000, 2 classes; lines of JSON in imdb/ or aclImdb/.

    Words and signs in small letters, the commonest `vocabulary` of the training reviews, or those of the file
    `words`. With next_token=True the labels are the texts themselves, a token on.
    """

    about: ClassVar[About] = About(
        name="Large Movie Review Dataset (IMDB), as texts",
        licence=LICENCE,
        origin=ORIGIN,
        shape=(128,),
        classes=2,
        sizes=SIZES,
        forms=FORMS,
    )

    length: int = 128
    vocabulary: int = 5000
    words: str = ""
    next_token: bool = False
    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        train, test = read_reviews(folder)
        tokenizer = self.tokenizer(folder, train.texts)
        cut = Cut()
        learnt, held = (self.encoded(rows, tokenizer, torch.tensor(rows.labels), cut) for rows in (train, test))
        return Loaded(learnt, held, self.class_names(tokenizer, CLASSES), notes=self.notes(cut))
