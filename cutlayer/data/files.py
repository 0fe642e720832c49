"""Where data files are looked for, and what is said when one is missing or broken."""

import hashlib
import os
import re
from pathlib import Path

SUMS = "SHA256SUMS"


class MissingData(FileNotFoundError):
    """A file that has to be put somewhere by a person; the message says which and where."""


class CorruptData(ValueError):
    """A file that is there but is not what it should be; nothing of it was used."""

    def __init__(self, path: Path, problem: str):
        super().__init__(f"{path} is not usable: {problem}; fetch or write the file again")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.problem)  # it may be found in a process that decodes


def in_utf8(path: Path, content: bytes, first: int = 1) -> str:
    """The text of a file, or of a part from the line `first` on, without the mark that some editors begin it with."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first + content.count(b"\n", 0, error.start)
        raise CorruptData(path, f"line {line} is no text in UTF-8: save it as UTF-8") from error


def home(folder: Path | None) -> Path:
    """The data folder: `folder`, else $CUTLAYER_DATA, else ./data."""
    return Path(folder or os.environ.get("CUTLAYER_DATA") or "data")


def find(folder: Path | None, *relative: str, origin: str = "") -> Path:
    """The first of the `relative` paths that exists in the data folder, compared with its SHA256SUMS if it has one.

    Only one folder is searched: a set that a person pointed at is never quietly replaced by another copy.
    `origin` tells the person where the file can be had.
    """
    root = home(folder)
    for name in relative:
        if (root / name).is_file():
            verify(root, name, read_sums(root))
            return root / name
    others = f" (or {', '.join(relative[1:])})" if relative[1:] else ""
    raise MissingData(
        f"there is no {relative[0]} in {root.absolute()}: put the file there{others}, or point at the folder "
        f"that holds it with --data-dir or the variable CUTLAYER_DATA" + (f". {origin}" if origin else "")
    )


def own_file(folder: Path | None, path: str) -> Path:
    """A file of one's own. A path typed at a prompt is meant from where one stands, as for any other command."""
    typed = Path(path).expanduser()
    if typed.is_file():
        return typed
    root = home(folder)
    if typed.is_absolute() or not (root / path).is_file():
        places = f"{typed}" if typed.is_absolute() else f"{path} in {Path.cwd()}, nor in {root.absolute()}"
        raise MissingData(
            f"there is no {places}: name the file by its path from here, or point at the folder that holds it with "
            "--data-dir or the variable CUTLAYER_DATA"
        )
    return find(folder, path)


def own_folder(folder: Path | None, path: str) -> Path:
    """The same for a folder."""
    for place in (Path(path).expanduser(), home(folder) / path):
        if place.is_dir():
            return place
    raise MissingData(
        f"there is no folder {path}, neither here nor in {home(folder).absolute()}: give its path, or point at "
        "the folder that holds it with --data-dir or the variable CUTLAYER_DATA"
    )


def read_sums(root: Path) -> dict[str, str]:
    """The sha256 of files by name, from SHA256SUMS in `root`; empty if there is none."""
    path = root / SUMS
    sums = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else [], 1):
        # The form of sha256sum: a digest, a space, a space or a star, the name.
        found = re.fullmatch(rb"([0-9a-fA-F]{64}) [ *](.+)", line)
        if line.strip() and not found:
            raise CorruptData(path, f"line {number} is not a sha256 and a file name")
        if found:
            sums[os.fsdecode(found[2]).removeprefix("./")] = found[1].decode().lower()
    return sums


def verify(root: Path, name: str, sums: dict[str, str]) -> None:
    """Refuse a file that is not the one SHA256SUMS speaks of; files it does not list pass."""
    if name in sums and (found := digest(root / name, "sha256")) != sums[name]:
        raise CorruptData(root / name, f"its sha256 is {found[:12]}…, {SUMS} says {sums[name][:12]}…")


def digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
