"""Your own texts: sentences with labels, or without, as rows of token ids of one length."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.batch import NO_LABEL, PAD
from ..core.seeds import derive
from .base import About, Loaded, Samples, Source, carve, refuse_one_class
from .csv_columns import NoColumn
from .files import home, own_file
from .text_files import TextRows, is_saved_set, read_saved_set, read_texts
from .tokenizer import Tokenizer, built_from, read_tokenizer

MOST_CLASSES = 256
MOST_LABEL = 64  # letters of a label; a longer one is a sentence
HALF = re.compile("[\ud800-\udfff]")  # of a sign in two parts
TEST_NAMES = ("test", "validation")  # of a saved set, the first that is there and has labels


class TextSource(Source):
    """What every source of texts has: how long they are, which words there are, and what is learnt of them."""

    length: int
    vocabulary: int
    words: str
    next_token: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.length) is not int or self.length < 2:
            raise ValueError(f"length is how many tokens of a text are read, at least 2; got {self.length!r}")
        if type(self.vocabulary) is not int or self.vocabulary < 3:
            raise ValueError(
                f"vocabulary is how many token ids there are, padding and unknown words among them, at least 3; got "
                f"{self.vocabulary!r}"
            )

    def tokenizer(self, folder: Path | None, train: list[str]) -> Tokenizer:
        """The one of the file `words`; without one it is made of the commonest words of the training texts."""
        if not self.words:
            return built_from(train, self.vocabulary)
        path = own_file(folder, self.words)
        found = read_tokenizer(path)
        if len(found.words) > self.vocabulary:
            raise ValueError(
                f"{path} has {len(found.words)} token ids and vocabulary is {self.vocabulary}: give data and network "
                f"vocabulary={len(found.words)}"
            )
        return found

    def encoded(self, rows: TextRows, tokenizer: Tokenizer, y: Tensor, cut: "Cut") -> Samples:
        """Each text as `length` ids: cut where it is longer, padded at the end where it is shorter."""
        more = int(self.next_token)
        ids = torch.full((len(rows.texts), self.length + more), PAD, dtype=torch.int64)
        for row, text in enumerate(rows.texts):
            if HALF.search(text):  # no file of words could hold it
                raise ValueError(
                    f"{rows.place(row)}: the text {text[:40]!r} has half of a sign, as of an emoji that was cut: "
                    "mend it, or leave that row out"
                )
            found = tokenizer.encode(text, self.length + more + 1)  # one too many says that it is cut
            if not text.strip() or len(found) < 1 + more:  # a tokenizer may put signs of its own around nothing
                wanted = "two words, one to go by and one to learn" if more else "a word"
                raise ValueError(f"{rows.place(row)}: the text {text[:40]!r} has not {wanted}: leave that row out")
            cut.note(found, self.length + more, tokenizer.unknown)
            kept = found[: self.length + more]
            ids[row, : len(kept)] = torch.tensor(kept)
        x = ids[:, : self.length].contiguous()
        if more:
            y = ids[:, 1:].masked_fill(ids[:, 1:] == PAD, NO_LABEL)
        return Samples(x, y, vocabulary=self.vocabulary, tokenizer=tokenizer, places=rows.places)

    def notes(self, cut: "Cut") -> tuple[str, ...]:
        """What reading did to the texts."""
        return (
            f"{cut.longer:,} of {cut.texts:,} texts have more than {self.length} tokens and are cut there; "
            f"shorter ones are padded at the end ({cut.padding(self.length):.0%} of all places)",
            f"{cut.unknown / max(1, cut.tokens):.1%} of their tokens are outside the vocabulary of "
            f"{self.vocabulary:,}",
        )

    def class_names(self, tokenizer: Tokenizer, labels: tuple[str, ...]) -> tuple[str, ...]:
        """What is learnt: the labels, or every word that may come next."""
        if not self.next_token:
            return labels
        return (*tokenizer.words, *(f"unused {place}" for place in range(len(tokenizer.words), self.vocabulary)))


@dataclass
class Cut:
    """Counts of what was read: texts, tokens that were kept, those among them without a word, texts that were cut."""

    texts: int = 0
    longer: int = 0
    tokens: int = 0
    unknown: int = 0

    def note(self, ids: list[int], most: int, unknown: int | None) -> None:
        self.texts += 1
        self.longer += len(ids) > most
        kept = ids[:most]
        self.tokens += len(kept)
        self.unknown += sum(one == unknown for one in kept)

    def padding(self, length: int) -> float:
        return max(0.0, 1 - self.tokens / (self.texts * length))


@dataclass(frozen=True, repr=False)
class Texts(TextSource):
    """Your own texts, any length, as token ids: fields of a .jsonl or .csv file, or a saved Hugging Face set.

    `words` is a file: a list of words (one a line, [PAD] and [UNK] first) or a tokenizer.json. Without it, the
    commonest `vocabulary` words of the training texts are taken, small letters. Labels are numbers or short texts.
    With next_token=True there are none: each place learns which token comes next. `test` is a second file; without
    it a tenth of every class is set aside. Texts without labels are for `cutlayer predict` alone.
    """

    about: ClassVar[About] = About(
        name="texts of one's own", licence="yours", origin='A line is {"text": "...", "label": ...}.'
    )

    path: str
    length: int = 128
    vocabulary: int = 5000
    words: str = ""
    text: str = "text"  # the field that holds the text
    label: str = "label"
    test: str = ""
    next_token: bool = False
    limit: int | None = None

    def read(self, folder: Path | None) -> Loaded:
        train, test, more = self._rows(folder, None if self.next_token else self.label)
        y, names = (torch.zeros(0), ()) if self.next_token else numbered(train, test, self.label)
        count = len(train.texts)
        order = torch.zeros(count, dtype=torch.int64) if self.next_token else y[:count]
        whole = torch.arange(count)
        kept, held = carve(order, derive(0, "texts", "test")) if test is None else (whole, whole[:0])
        if not self.next_token:
            refuse_one_class(train.path, y[kept], f"the field {self.label!r}")
        tokenizer = self.tokenizer(folder, [train.texts[row] for row in kept.tolist()])
        cut = Cut()
        pool = self.encoded(train, tokenizer, y[:count], cut)
        rest = pool[held] if test is None else self.encoded(test, tokenizer, y[count:], cut)
        return Loaded(pool[kept], rest, self.class_names(tokenizer, names), notes=(*self.notes(cut), *more))

    def has_labels(self, folder: Path | None) -> bool:
        if self.next_token:
            return True
        try:
            return not self._rows(folder, self.label).train.held_back
        except NoColumn:
            return False

    def unlabelled_rows(self, folder: Path | None, known: Loaded) -> Tensor:
        train, test, _ = self._rows(folder, None)
        rows, tokenizer = test or train, known.tokenizer
        if self.words:
            tokenizer = self.tokenizer(folder, [])
        if tokenizer is None:
            raise ValueError(
                f"which words this network has learnt is not known: name their list in {self} with words="
            )
        if known.tokenizer is not None and tuple(tokenizer.words) != tuple(known.tokenizer.words):
            raise ValueError(f"{self.words} has other words than this network has learnt: leave words= out")
        return self.encoded(rows, tokenizer, torch.zeros(len(rows.texts), dtype=torch.int64), Cut()).x

    def _rows(self, folder: Path | None, label: str | None) -> "_Read":
        for place in (Path(self.path).expanduser(), home(folder) / self.path):
            if place.is_dir() and is_saved_set(place):
                if self.test:
                    raise ValueError(
                        f"{place} is a saved set, which has its own test set: leave test={self.test!r} out"
                    )
                return _train_and_test(place, read_saved_set(place, self.text, label))
        train = read_texts(own_file(folder, self.path), self.text, label)
        return _Read(train, read_texts(own_file(folder, self.test), self.text, label) if self.test else None)


class _Read(NamedTuple):
    train: TextRows
    test: TextRows | None = None
    notes: tuple[str, ...] = ()


def _train_and_test(path: Path, sets: dict[str, TextRows]) -> _Read:
    if "" in sets:
        return _Read(sets[""])
    if "train" not in sets:
        raise ValueError(
            f"{path} has the sets {', '.join(sets)}, and none of them is called train: save one as train"
        )
    tests = [sets[name] for name in TEST_NAMES if name in sets]
    notes = [f"{one.path} has -1 for every label, so it is not tested on" for one in tests if one.held_back]
    return _Read(sets["train"], next((one for one in tests if not one.held_back), None), tuple(notes))


def numbered(train: TextRows, test: TextRows | None, label: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels from 0 for the rows of both files, and what they stand for."""
    labels = train.labels + (test.labels if test is not None else [])
    files = [train, *([test] if test is not None else [])]
    for rows in files:
        for row, one in enumerate(rows.labels):
            _refuse_no_label(rows, row, one, label)
    values = sorted(set(map(str, labels)), key=lambda one: (not _whole(one), int(one) if _whole(one) else 0, one))
    if len(values) > MOST_CLASSES:
        raise ValueError(
            f"the field {label!r} of {train.path} has {len(values)} different values, over {MOST_CLASSES}: name the "
            "field with the class of each text with label=, or learn the texts themselves with next_token=True"
        )
    if train.names and all(_whole(value) and int(value) < len(train.names) for value in values):
        return torch.tensor([int(one) for one in labels]), train.names
    places = {value: place for place, value in enumerate(values)}
    return torch.tensor([places[str(one)] for one in labels]), tuple(values)


def _refuse_no_label(rows: TextRows, row: int, one: Any, label: str) -> None:
    if isinstance(one, bool | int) or (isinstance(one, str) and one.strip() and len(one) <= MOST_LABEL):
        return
    if isinstance(one, str) and one.strip():
        raise ValueError(
            f"{rows.place(row)}: the label {one[:30] + '…'!r} is a sentence, not a class: name the field with the "
            "class of each text with label=, or learn the texts themselves with next_token=True"
        )
    raise ValueError(
        f"{rows.place(row)}: the field {label!r} holds {one!r}; a label is a whole number or a short text"
    )


def _whole(text: str) -> bool:
    return text.lstrip("-").isdecimal()
