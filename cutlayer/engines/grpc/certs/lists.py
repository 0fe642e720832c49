"""Lists of certificates, one a line: those that were made, and those that are revoked."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .base import NAME, CertificateError
from .files import trouble_told

HEAD = "# cutlayer: serial, name, time\n"
LINE = re.compile(rf"([0-9a-fA-F]{{1,40}}) +({NAME.pattern}) +(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Entry:
    """A line of revoked.txt (when it was revoked) or issued.txt (when it expires)."""

    serial: int
    name: str
    when: datetime


class Revoked:
    """The list of revoked serial numbers, read again whenever its file changed.

    A list that cannot be read is an error, never an empty list: nobody enters until it is mended.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._known: tuple[tuple[int, ...], frozenset[int]] | None = None  # set in one piece: threads share it
        self.holds(0)  # a bad list is told at the start, not at the first client

    @trouble_told()
    def holds(self, serial: int) -> bool:
        stamp = self._stamp()
        known = self._known
        if known is None or known[0] != stamp:
            # The stamp is older than what is read: a write in between is noticed at the next call.
            known = stamp, frozenset(entry.serial for entry in read_list(self.path))
            self._known = known
        return serial in known[1]

    def _stamp(self) -> tuple[int, ...]:
        try:
            about = self.path.stat()
        except FileNotFoundError:
            # Lists are replaced, never taken away: one that was there and is not is a mistake.
            if self.path.parent.is_dir() and (self._known is None or self._known[0] == ()):
                return ()
            raise CertificateError(f"{self.path} is gone, and with it who is shut out; bring it back") from None
        return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


def list_text(entries: Iterable[Entry]) -> bytes:
    """What `read_list` reads."""
    lines = [f"{entry.serial:040x} {entry.name} {entry.when.strftime(TIME)}\n" for entry in entries]
    return (HEAD + "".join(lines)).encode()


def read_list(path: Path) -> list[Entry]:
    """The entries of a list; no file is an empty list, a damaged one is an error."""
    try:
        text = path.read_bytes().decode("ascii")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CertificateError(f"{path} is damaged: it is no text; copy it again") from None
    # Both ends are checked: a copy that was cut short would let somebody in.
    if not text.startswith(HEAD) or not text.endswith("\n"):
        raise CertificateError(f"{path} is damaged: its first line or the end of its last is missing; copy it again")
    lines = enumerate(text.splitlines(), 1)
    return [_entry(path, number, line) for number, line in lines if line.strip() and not line.startswith("#")]


def _entry(path: Path, number: int, line: str) -> Entry:
    found = LINE.fullmatch(line.strip())
    try:
        if found:
            return Entry(int(found[1], 16), found[2], datetime.strptime(found[3], TIME).replace(tzinfo=UTC))
    except ValueError:
        pass  # the 31st of February
    raise CertificateError(f"{path} is damaged: line {number} is not 'SERIAL NAME TIME'; mend it or copy it again")
