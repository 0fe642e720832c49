"""Texts as token ids and back: words of a list, or a tokenizer.json of the library tokenizers."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.batch import PAD
from .files import CorruptData, in_utf8

UNKNOWN = PAD + 1  # of a list of words, which begins with these two; a tokenizer.json names another
PAD_WORD, UNKNOWN_WORD = "[PAD]", "[UNK]"
MARKUP = re.compile(r"<[^<>]{1,20}>")
# Words with an apostrophe inside, numbers, and every other sign by itself.
PIECE = re.compile(r"[^\W_]+(?:['’][^\W_]+)?|[^\w\s]|_")
CLOSING, OPENING = frozenset(".,;:!?)]}%…"), frozenset("([{$#")
MOST_WORDS = 1 << 18


class Tokenizer(ABC):
    """`words` has the text of every id. Id 0 is padding, `unknown` every word without an id of its own."""

    words: Sequence[str]
    unknown: int | None = UNKNOWN  # None: there is none, for every text can be written

    @abstractmethod
    def encode(self, text: str, most: int | None = None) -> list[int]:
        """The ids of a text, as many as it has tokens; the first `most` at least, where no more are asked for."""

    def behind(self, text: str) -> list[int]:
        """The last of these ids that are no part of the text: signs that it has ended."""
        return []

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """A text with these ids; padding is left out."""


class WordTokenizer(Tokenizer):
    """Words and signs of a list; others are [UNK]. Small letters only, unless the list has capitals."""

    def __init__(self, words: Sequence[str]):
        self.words = tuple(words)
        if self.words[:2] != (PAD_WORD, UNKNOWN_WORD):
            raise ValueError(f"a list of words begins with {PAD_WORD} and {UNKNOWN_WORD}; got {self.words[:2]}")
        self._ids = {word: place for place, word in enumerate(self.words)}
        if len(self._ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"a list of words has each of them once; {twice!r} is there twice")
        self.cased = any(word != word.lower() for word in self.words[2:])

    def encode(self, text: str, most: int | None = None) -> list[int]:
        found = islice(PIECE.finditer(_plain(text, self.cased)), most)
        return [self._ids.get(piece[0], UNKNOWN) for piece in found]

    def decode(self, ids: Iterable[int]) -> str:
        text, glued = "", True
        for one in ids:
            if one == PAD:
                continue
            word = self.words[one]
            text += word if glued or word in CLOSING else f" {word}"
            glued = word in OPENING
        return text

    def as_text(self) -> str:
        """The words, one a line: what `read_tokenizer` makes a tokenizer of again."""
        return "".join(f"{word}\n" for word in self.words)


def pieces(text: str, cased: bool = False) -> list[str]:
    """The words and signs of a text; tags such as <br /> are left out."""
    return PIECE.findall(_plain(text, cased))


def _plain(text: str, cased: bool) -> str:
    text = MARKUP.sub(" ", text)
    return text if cased else text.lower()


def built_from(texts: Iterable[str], vocabulary: int, cased: bool = False) -> WordTokenizer:
    """The commonest words of these texts, `vocabulary` ids in all; where two are as common, by the alphabet."""
    counts = Counter(piece for text in texts for piece in pieces(text, cased))
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return WordTokenizer([PAD_WORD, UNKNOWN_WORD, *ranked[: vocabulary - 2]])


class LibraryTokenizer(Tokenizer):
    """A tokenizer.json, read by the library tokenizers; nothing of the file is run."""

    def __init__(self, path: Path):
        library = _library()
        content = in_utf8(path, path.read_bytes())
        try:
            self._inner: Any = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing more precise
            raise CorruptData(path, f"it is no tokenizer.json ({error})") from error
        self._inner.no_truncation()
        self._inner.no_padding()
        self.path = path
        model = json.loads(content)["model"]  # some kinds name the unknown word, one its id
        named = model.get("unk_token")
        self.unknown = model.get("unk_id") if named is None else self._inner.token_to_id(named)
        size = self._inner.get_vocab_size(with_added_tokens=True)
        self.words = tuple(self._inner.id_to_token(place) or "" for place in range(size))
        first = repr(self.words[PAD]) if self.words else "no id"
        if "pad" not in first.lower():
            raise ValueError(
                f"{path} has {first} at id {PAD}, and that is what texts are padded with here: take a "
                "tokenizer whose id 0 is its padding, or a list of words"
            )

    def encode(self, text: str, most: int | None = None) -> list[int]:
        return [one for one in self._encoded(text).ids if one != PAD]  # whoever writes [PAD] in a text writes nothing

    def behind(self, text: str) -> list[int]:
        found = self._encoded(text)
        own = [place for place, added in enumerate(found.special_tokens_mask) if not added]
        return list(found.ids[own[-1] + 1 if own else 0 :])

    def _encoded(self, text: str) -> Any:
        try:
            return self._inner.encode(text)
        except Exception as error:  # the library raises nothing more precise
            raise CorruptData(self.path, f"it has no ids for the text {text[:40]!r} ({error})") from error

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._inner.decode([one for one in ids if one != PAD]))


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a file: tokenizer.json, or words, one a line, [PAD] and [UNK] first."""
    if path.suffix == ".json":
        return LibraryTokenizer(path)
    words = in_utf8(path, path.read_bytes()).splitlines()
    if len(words) > MOST_WORDS:
        raise CorruptData(path, f"it has {len(words):,} words, more than {MOST_WORDS:,}")
    try:
        return WordTokenizer(words)
    except ValueError as error:
        raise CorruptData(path, str(error)) from error


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(
            f"a tokenizer.json needs the package tokenizers ({error}): pip install 'cutlayer[text]'"
        ) from error
    return tokenizers
