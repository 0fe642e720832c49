"""Where data files are looked for, and what is said when one is missing or broken."""

import os
from pathlib import Path


class MissingData(FileNotFoundError):
    """A file that has to be put somewhere by a person; the message says which and where."""


class CorruptData(ValueError):
    """A file that is there but is not what it should be; nothing of it was used."""

    def __init__(self, path: Path, problem: str):
        super().__init__(f"{path} is not usable: {problem}; fetch or write the file again")


def find(folder: Path | None, *relative: str, origin: str = "") -> Path:
    """The first of the `relative` paths that exists in `folder`, else in $CUTLAYER_DATA, else in ./data.

    Only one folder is searched: a set that a person pointed at is never quietly replaced by another copy.
    `origin` tells the person where the file can be had.
    """
    root = Path(folder or os.environ.get("CUTLAYER_DATA") or "data")
    for path in (root / name for name in relative):
        if path.is_file():
            return path
    others = f" (or {', '.join(relative[1:])})" if relative[1:] else ""
    raise MissingData(
        f"there is no {relative[0]} in {root.absolute()}: put the file there{others}, or point at the folder "
        f"that holds it with --data-dir or the variable CUTLAYER_DATA" + (f". {origin}" if origin else "")
    )
