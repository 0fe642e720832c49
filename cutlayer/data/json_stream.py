"""Lists of a large JSON file, one entry at a time: as objects the whole would take ten times its size."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from .files import CorruptData

SPACE = re.compile(r"[ \t\r\n]*")


def read_lists(path: Path, take: Mapping[str, Callable[[Any], None]]) -> None:
    """Hand every entry of the top-level lists named in `take` on; everything else is passed over."""
    text = path.read_text("utf-8")
    try:
        found = _read(text, take)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(path, f"not JSON of the expected form ({type(error).__name__}: {error})") from error
    if lost := [name for name in take if name not in found]:
        raise CorruptData(path, f"it has no list {lost[0]!r}")


def _read(text: str, take: Mapping[str, Callable[[Any], None]]) -> Collection[str]:
    decode, found = json.JSONDecoder().raw_decode, set[str]()
    place = _after(text, _skip(text, 0), "{")
    while text[place] != "}":
        name, place = decode(text, place)
        place = _after(text, _skip(text, place), ":")
        if name in take and text[place] == "[":
            found.add(name)
            place = _entries(text, place, take[name])
        else:
            _, place = decode(text, place)
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found


def _entries(text: str, place: int, take: Callable[[Any], None]) -> int:
    decode = json.JSONDecoder().raw_decode
    place = _after(text, place, "[")
    while text[place] != "]":
        entry, place = decode(text, place)
        take(entry)
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return place + 1


def _after(text: str, place: int, sign: str) -> int:
    if text[place] != sign:
        raise ValueError(f"expected {sign!r} at character {place}, found {text[place]!r}")
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = SPACE.match(text, place)
    assert found is not None
    return found.end()
