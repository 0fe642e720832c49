"""What a deployed party says while it runs: facts by name, never the contents of a tensor."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What an event is about, by name."""
    return getattr(record, "facts", {})


class Facts(logging.Formatter):
    """One line an event: time, party, event and its facts, as text or as JSON."""

    def __init__(self, form: str):
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        facts = facts_of(record)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.getMessage()
        if self._json:
            return json.dumps(
                {"time": when, "level": record.levelname, "party": record.name, "event": event, **facts}
            )
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{when} {event} {told}".rstrip()


class _Stderr(logging.StreamHandler):
    """Standard error as it is when something is said: it may be taken over while a party runs (native_lines.py)."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def start_logs(form: str) -> None:
    """Events of `cutlayer.*` to standard error."""
    if form not in ("text", "json"):
        raise ValueError(f"--log is text or json; got {form!r}")
    handler = _Stderr()
    handler.setFormatter(Facts(form))
    logger = logging.getLogger("cutlayer")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
