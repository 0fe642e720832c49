"""A spec with origins in it, `file.py:Name(...)`, as Python's parser can read it."""

import ast
import re
from typing import NamedTuple

from .origin import BARE_PATH

_NAME = r"[^\W\d]\w*"
_QUOTED = r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
# Strings are passed over, unless they are a path: then a name follows.
_ORIGIN = re.compile(
    rf"{_QUOTED}(?::(?P<behind>{_NAME}))?|(?P<file>{BARE_PATH.pattern}):(?P<in_file>{_NAME})"
    rf"|(?<![\w.])(?P<module>{_NAME}(?:\.{_NAME})*):(?P<in_module>{_NAME})"
)


class Origin(NamedTuple):
    """A name and where it is: a file as it was typed, or a module."""

    place: str
    name: str
    is_file: bool

    def __str__(self) -> str:
        quoted = self.is_file and not BARE_PATH.fullmatch(self.place)
        return f"{self.place!r}:{self.name}" if quoted else f"{self.place}:{self.name}"


def rewritten(text: str) -> tuple[str, dict[str, Origin]]:
    """The text with a plain name for every origin, and what these names stand for."""
    origins: dict[str, Origin] = {}
    stem = "outside_"
    while stem in text:  # nobody types a placeholder and means one
        stem += "_"

    def replace(found: re.Match[str]) -> str:
        if found["quoted"] and not found["behind"]:
            return found[0]
        if found["quoted"]:
            path = ast.literal_eval(found["quoted"])
            if not path.endswith(".py"):
                return found[0]
            origin = Origin(path, found["behind"], is_file=True)
        elif found["file"]:
            origin = Origin(found["file"], found["in_file"], is_file=True)
        else:
            origin = Origin(found["module"], found["in_module"], is_file=False)
        placeholder = f"{stem}{len(origins)}"
        origins[placeholder] = origin
        return placeholder

    return _ORIGIN.sub(replace, text), origins
