"""The audit log of a party: who came, who was refused and why, what was agreed, released and halted. Never contents.

`audit.jsonl` in the run's folder, one JSON object a line. It is only ever appended to, by every process that goes on
in that folder, so it tells the whole story of a run. What is said again and again is thinned out, or a hostile caller
could fill the disk with it.
"""

import logging
import os
import sys
import time
from collections import OrderedDict
from pathlib import Path

from ...core import files
from .logs import Facts, facts_of

AUDIT_LOG = "audit.jsonl"
LEFT_OUT = ("waiting",)  # said every few seconds while a server is away
MOST, SECONDS, KEYS = 5, 60.0, 1024  # lines of one kind about one party in so long; kinds that are remembered


class AuditLog(logging.Handler):
    """Writes what one party says, and what gRPC says in its process, from `open` to `close`."""

    def __init__(self, folder: Path, party: str):
        super().__init__(logging.INFO)
        self.setFormatter(Facts("json"))
        self._path, self._party, self._thin = folder / AUDIT_LOG, party, Thinned()
        with files.room_for(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a process was killed, or the disk full, in the middle of a line
        self._failed = False
        logger = logging.getLogger("cutlayer")
        logger.addHandler(self)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        if self._file < 0 or record.name not in (self._party, "cutlayer.grpc") or record.getMessage() in LEFT_OUT:
            return
        left_out = self._thin(record)
        if left_out is None:
            return
        if left_out:
            record = logging.makeLogRecord({**record.__dict__, "facts": {**facts_of(record), "left_out": left_out}})
        try:
            files.write_all(self._file, ("\n" * self._failed + self.format(record) + "\n").encode())
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, until it works again; the run itself does not depend on it
                print(
                    f"cannot write {self._path}: {error.strerror}; make space, it goes on by itself", file=sys.stderr
                )
            self._failed = True

    def close(self) -> None:
        logging.getLogger("cutlayer").removeHandler(self)
        self.acquire()  # whoever writes just now is done first: the number may be another file's next
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.release()
        super().close()


class Thinned:
    """Of lines that say the same of the same party a few a minute pass; the next one says how many did not."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()  # since when, how many

    def __call__(self, record: logging.LogRecord) -> int | None:
        """How many were left out since the last one that passed; None: this one is left out."""
        facts = facts_of(record)
        about = tuple(str(facts.get(name, "")) for name in ("client", "whose", "error", "what", "epoch", "where"))
        key = (record.getMessage(), *about)
        now = time.monotonic()
        since, count = self._seen.pop(key, (now, 0))
        left_out = 0
        if now - since > SECONDS:
            left_out, since, count = max(0, count - MOST), now, 0
        self._seen[key] = since, count + 1
        if len(self._seen) > KEYS:
            self._seen.popitem(last=False)
        return left_out if count < MOST else None
