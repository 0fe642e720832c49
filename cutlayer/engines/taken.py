"""Whose a folder is: one process at a time writes there, and what it did not use it takes away again."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from io import FileIO
from itertools import count
from pathlib import Path

from ..core.files import WRITING, room_for, tidy

LOCK = ".lock"
AT_ONCE = {"attack", "bench", "costs", "edge", "memory"}  # begun anew each time: there is nothing to go on with
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # shared drives that know none; there nobody is kept out


@contextlib.contextmanager
def taken(out: Path | None, kind: str, resume: Path | None = None) -> Iterator[Path]:
    """Where results go, for this process alone: a new folder, or the one to `resume`. What is in the way is never
    written over; a folder that was made here and got nothing is gone afterwards."""
    folder, made = (_begun(resume), []) if resume is not None else _made(out, kind)
    try:
        lock = FolderLock(folder)
        try:
            if resume is None:
                _refuse_full(folder, kind)
            tidy(folder)
            yield folder
        finally:
            lock.release()
    finally:
        with contextlib.suppress(OSError):  # it got something, or the one above is another's by now
            for path in made:
                path.rmdir()


class FolderLock:
    """While it is held no other process goes on in a folder: two of one identity would undo each other's steps.

    It is the system's (flock), so it goes with its process, however that ends; the file says who has it. `name`: of
    another lock, where processes share a folder and each has a part of it.
    """

    def __init__(self, folder: Path, name: str = LOCK):
        self._folder, self._path = folder, folder / name
        self._file = self._locked()
        try:
            with room_for(self._path):
                self._file.truncate(0)
                self._file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
        except OSError:
            self.release()
            raise

    def _locked(self) -> FileIO:
        while True:
            file = _opened(self._path)
            try:
                _flock(file)
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"another process{self._holder()} goes on in {self._folder}: wait until it has ended, or end it; "
                    "to begin another beside it, choose another --out"
                ) from error
            if self._is_at(file):
                return file
            file.close()  # whoever had it took the file away while we waited: there is another by now

    def _holder(self) -> str:
        """Who says in the file that it has the lock."""
        with contextlib.suppress(OSError, ValueError):
            number, host = self._path.read_text().split()
            return f" ({number})" if host == socket.gethostname() else f" ({number} on {host})"
        return ""

    def _is_at(self, file: FileIO) -> bool:
        """Whether an open file is still the one that the next process will open."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        return False

    def release(self) -> None:
        if self._file.closed:
            return
        with contextlib.suppress(OSError):
            if self._is_at(self._file):  # and no other's, where the folder was removed and made anew
                self._path.unlink()
        self._file.close()


def is_nothing(path: Path) -> bool:
    """What a process leaves in a folder that it could not begin."""
    return path.name == LOCK or path.name.endswith(WRITING)


def _opened(path: Path) -> FileIO:
    with _told(path.parent), room_for(path):
        return FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")


def _flock(file: FileIO) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # not on every system; there nobody is kept out
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _begun(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to go on in")
    return folder


def _made(out: Path | None, kind: str) -> tuple[Path, list[Path]]:
    """A folder of its own, and what had to be made for it: the folder first, then those above it."""
    if out is not None:
        return out, _make(out, kind)
    first = Path("runs") / f"{kind}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in count(1):  # of two that begin in one second each has its own
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if not folder.exists() and (made := _make(folder, kind)):
            return folder, made
    raise AssertionError("count never ends")


def _make(folder: Path, kind: str) -> list[Path]:
    """The folders that are there only now; none: it was there before, with nothing in it."""
    above = standing(folder)
    if above == folder and not (folder / LOCK).exists():
        _refuse_full(folder, kind)  # before a lock is laid into what is somebody else's
    made = [parent for parent in [folder, *folder.parents] if not parent.exists()]
    with _told(above), room_for(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:  # another process was first; the lock says which of the two has it
            return []
    return made


def standing(folder: Path) -> Path:
    """What of a folder's path is there already; refused where no folder can be made in it."""
    above = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{above} is a file, and results go into a folder: choose another --out")
    if not os.access(above, os.W_OK):
        raise _no_permission(above)
    return above


def _refuse_full(folder: Path, kind: str) -> None:
    if any(not is_nothing(one) for one in folder.iterdir()):
        or_else = "" if kind in AT_ONCE else f", or go on in it with --resume {folder} where it was interrupted"
        raise FileExistsError(f"{folder} exists and is not empty: choose another --out{or_else}")


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _no_permission(folder) from error
        raise


def _no_permission(folder: Path) -> PermissionError:
    return PermissionError(f"no permission to write in {folder}: choose another --out")
