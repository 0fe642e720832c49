"""What features and labels stand for: where two data sets differ in that, equal shapes say nothing."""

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .samples import Loaded

LONGEST = 120  # characters of a list that are shown


@dataclass(frozen=True)
class Meaning:
    """The names behind the numbers, as far as there are any. What is empty can stand for anything."""

    classes: tuple[str, ...] = ()  # empty where labels are numbers and no more
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of a table: names, and the values of a category
    words: str = ""  # of texts: a digest of what the token ids stand for

    @classmethod
    def of(cls, loaded: "Loaded") -> Self:
        columns = tuple((one.name, one.values) for one in loaded.train.columns)
        # A table's labels are what stands in it; an array's may have been numbered by whoever wrote it.
        numbered = not columns and loaded.classes == tuple(map(str, range(len(loaded.classes))))
        words = "" if loaded.tokenizer is None else "\n".join(loaded.tokenizer.words)
        return cls(
            () if numbered else tuple(map(str, loaded.classes)),
            columns,
            sha256(words.encode()).hexdigest() if words else "",
        )

    def difference(self, other: "Meaning") -> str:
        """In what this is not the `other` one, in words; empty where they agree as far as both say something."""
        if self.words and other.words and self.words != other.words:  # of next tokens they are the classes, too
            return "its token ids stand for other words: name those with words="
        if self.classes and other.classes and self.classes != other.classes:
            return f"its classes are {_shown(self.classes)}, not {_shown(other.classes)}"
        if self.columns and other.columns and self.columns != other.columns:
            ours, theirs = ([name for name, _ in one.columns] for one in (self, other))
            if ours != theirs:
                return f"its columns are {_shown(ours)}, not {_shown(theirs)}"
            pairs = zip(self.columns, other.columns, strict=True)
            (name, values), (_, wanted) = next(pair for pair in pairs if pair[0] != pair[1])
            return f"its column {name!r} has {_shown(values or ['numbers'])}, not {_shown(wanted or ['numbers'])}"
        return ""

    def codes(self, key: bytes) -> dict[str, str]:
        """By what two parties that have the key see whether they mean the same, and nobody else sees what."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name)}
        said = {name: json.dumps(["meaning", name, what]).encode() for name, what in told.items()}
        return {name: hmac.digest(key, text, "sha256").hex() for name, text in said.items()}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        columns = tuple((str(name), tuple(map(str, values))) for name, values in told["columns"])
        return cls(tuple(map(str, told["classes"])), columns, str(told["words"]))


def _shown(names: "tuple[str, ...] | list[str]") -> str:
    text = ", ".join(names)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
