"""Files that survive: whole or not there, on disk before they count, and a full disk said in one sentence."""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from .errors import DiskFull

if TYPE_CHECKING:
    from torch import Tensor

WRITING = ".writing"  # the end of a name that a file has until it is whole
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NUMBER = re.compile(r"(?:os error|code:) (\d+)")
_FOREIGN = ".tmp"  # how the names begin under which safetensors writes


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what is to be `path`. It takes the name once its contents are on disk; the name is, too, when
    this ends. If anything fails on the way, the old file is still there and nothing beside it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}{WRITING}")  # another process may write the same one
    with room_for(path):
        try:
            yield beside
            sync(beside)
            os.replace(beside, path)
            sync(path.parent)
        except BaseException:
            beside.unlink(missing_ok=True)  # what is half written takes up the room that is lacking
            raise


def write_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    with whole(path) as beside:
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.fchmod(number, mode)  # exactly, whatever the umask
            write_all(number, content)
        finally:
            os.close(number)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    write_bytes(path, text.encode(), mode)


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], facts: Mapping[str, str] | None = None) -> None:
    """A file of safetensors; `facts` go into its header."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with whole(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata=dict(facts) if facts is not None else None)
        except SafetensorError as error:  # it has the system's number in its text alone
            found = _NUMBER.search(str(error))
            number = int(found.group(1)) if found else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error


def write_all(number: int, content: bytes | bytearray | memoryview) -> None:
    """To an open file. A disk that is nearly full takes part of what it is given, and says so by a count alone."""
    view = memoryview(content)
    while view:
        view = view[os.write(number, view) :]


def sync(path: Path) -> None:
    """Until a file, or the names in a folder, would survive a power cut."""
    if os.name != "posix" and path.is_dir():
        return  # folders cannot be opened there
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Several files by their names: none takes its name before the last one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not beside the folder: it may be a disk of its own, and what is around it somebody else's.
    with room_for(folder), tempfile.TemporaryDirectory(dir=folder, suffix=WRITING) as beside:
        for name, content in contents.items():
            write_bytes(Path(beside) / name, content)
        for name in contents:
            os.replace(Path(beside) / name, folder / name)
        sync(folder)


def is_full(error: BaseException) -> TypeGuard[OSError]:
    """Whether this is the system's way to say that there is no room: on the disk, within a quota, or for a file."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Around whatever writes `path`."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise no_room(path) from error
        raise


def no_room(path: Path | str | None) -> DiskFull:
    return DiskFull(
        f"there is no room left for {path or 'a file'}: nothing that was written before is lost; make room on its "
        "disk, then start the same command again (a training run: with --resume)"
    )


def tidy(folder: Path) -> None:
    """Remove what killed processes left half written. For whoever has the folder to itself."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file() and (path.name.endswith(WRITING) or path.name.startswith(_FOREIGN)):
            path.unlink(missing_ok=True)
        elif path.is_dir() and path.name.endswith(WRITING):
            shutil.rmtree(path, ignore_errors=True)
