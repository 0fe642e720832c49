"""What gRPC's core writes to standard error, past Python, made into events of our log like all others."""

import contextlib
import faulthandler
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

LINE = re.compile(rb"([IWEF])\d{4} \S+ +\d+ (?P<where>[\w.]+:\d+)\] (?P<text>.*)")  # of the C++ core
PREAMBLE = b"All log messages before absl::InitializeLog"
LEVELS = {b"I": logging.INFO, b"W": logging.WARNING, b"E": logging.ERROR, b"F": logging.CRITICAL}
LONGEST = 500  # characters of a line that are kept

log = logging.getLogger("cutlayer.grpc")


def quiet_lines() -> contextlib.AbstractContextManager[None]:
    """While this holds, gRPC's core says nothing: whoever calls it says in a sentence what failed. Who asks for its
    lines by gRPC's own GRPC_VERBOSITY gets them."""
    return contextlib.nullcontext() if "GRPC_VERBOSITY" in os.environ else native_lines(told=False)


@contextlib.contextmanager
def native_lines(told: bool = True) -> Iterator[None]:
    """While this holds, lines of gRPC's core are events; other lines that pass Python by go where they went."""
    try:
        ours = sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):
        ours = False  # somebody else has taken standard error over already
    if not ours:
        yield
        return
    real, before = os.dup(2), sys.stderr
    reader, writer = os.pipe()
    sys.stderr = open(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)  # a crash must not end in the pipe, where nobody reads it any more
    os.dup2(writer, 2)
    os.close(writer)
    thread = threading.Thread(target=_hear, args=(reader, real, told), name="native lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        faulthandler.disable()
        os.dup2(real, 2)  # the pipe has no other end now: the thread reads what is left, and ends
        sys.stderr = before
        thread.join(2)


def _hear(reader: int, real: int, told: bool) -> None:
    with open(reader, "rb") as lines:
        for line in lines:
            if (event := parse(line)) is not None:
                level, facts = event
                if told:
                    log.log(level, "grpc", extra={"facts": facts})
            elif PREAMBLE not in line:
                with contextlib.suppress(OSError):
                    os.write(real, line)


def parse(line: bytes) -> tuple[int, dict[str, str]] | None:
    """Level and facts of a line of gRPC's core; None: it is somebody else's."""
    found = LINE.match(line)
    if found is None:
        return None
    where, text = (found[name].decode(errors="replace")[:LONGEST] for name in ("where", "text"))
    return LEVELS[found[1]], {"where": where, "text": text}
