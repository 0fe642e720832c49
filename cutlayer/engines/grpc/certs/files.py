"""Folders and files that are there whole or not at all, with their modes from the first byte."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ....core.errors import DiskFull
from ....core.files import sync, write_bytes
from .base import CertificateError

MAKING, OLD = ".making-", ".old-"  # what an interrupted run may leave behind, before the name of the party
WRITING = ".writing"


@contextlib.contextmanager
def trouble_told() -> Iterator[None]:
    """What the disk refuses, as an error of ours; used as a decorator."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        raise CertificateError(f"cannot use {error.filename or 'the disk'}: {error.strerror}") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One run at a time, in a folder that no interrupted run has left untidy."""
    import fcntl  # not on every system; there, certificates can still be read

    if folder.exists() and not folder.is_dir():
        raise CertificateError(f"{folder} is not a folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _tidy(folder)
        yield
    finally:
        os.close(lock)


def _tidy(folder: Path) -> None:
    for path in listed(folder):
        if path.name.startswith(MAKING):
            shutil.rmtree(path)
        elif path.name.startswith(OLD):
            home = folder / path.name.removeprefix(OLD)
            if home.exists():
                shutil.rmtree(path)
            else:
                path.rename(home)


@contextlib.contextmanager
def new_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder to fill; it takes its name, and the place of an older one, when all is in it."""
    beside, home, old = folder / (MAKING + name), folder / name, folder / (OLD + name)
    beside.mkdir(mode=0o700)
    try:
        yield beside
        if home.exists():
            home.rename(old)
        beside.rename(home)
        sync(folder)
    except BaseException:
        _tidy(folder)
        raise
    if old.exists():
        shutil.rmtree(old)


def write(path: Path, data: bytes, mode: int) -> None:
    """A new file with this mode from its first byte, on disk when this returns."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(number, "wb") as file:
        os.fchmod(number, mode)  # exactly, whatever the umask
        file.write(data)
        file.flush()
        os.fsync(number)


def replace(path: Path, data: bytes, mode: int) -> None:
    """A reader sees the old file or the new one, never half of one."""
    write_bytes(path, data, mode)


def listed(folder: Path) -> list[Path]:
    """What is in a folder, by name."""
    return sorted(folder.iterdir())


def read(path: Path) -> bytes:
    """The bytes of a file that has to be there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CertificateError(f"{path} is missing; copy the whole folder again") from None


def _open_to_others(about: os.stat_result) -> bool:
    """A secret that root hands to one group alone, ours, is closed enough: so orchestrators mount them."""
    handed_over = about.st_uid == 0 and os.geteuid() != 0 and not about.st_mode & 0o037
    return bool(about.st_mode & 0o077) and not handed_over


def read_secret(path: Path) -> bytes:
    """The same for a key, which others must not be able to read."""
    data = read(path)
    if os.name == "posix" and _open_to_others(path.stat()):
        raise CertificateError(f"others on this machine may read {path}; first: chmod 600 {path}")
    return data
