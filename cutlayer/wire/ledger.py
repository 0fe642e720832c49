"""What crossed and how many bytes it took: facts, never contents."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from ..core.html import table
from ..core.message import Handler, Kind, Message
from . import frames as wire
from .later import Later, settled

UP, DOWN = "up", "down"
NAMES = {kind: kind.name for kind in Kind}  # an enum takes its time to say its name
TRAINING = (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


MOST_WAITING = 256  # messages whose bytes a device is still counting: then they are read, all with one wait


class Noted(NamedTuple):
    """A message that was written down: its kind and direction, and its bytes."""

    key: tuple[str, str]
    found: int | Later


class Ledger:
    """A watcher that counts messages and the bytes of their frames, per kind and direction.

    How many samples a message is about only the client knows (guards let samples share rows): it counts them itself.
    Nobody waits for a device here: bytes that hang on contents are counted where the tensors are, and read when
    somebody asks for them.
    """

    def __init__(self, samples: Counter[str] | None = None):
        self.messages: Counter[tuple[str, str]] = Counter()
        self.samples: Counter[str] = samples or Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._waiting: list[tuple[tuple[str, str], Later]] = []
        self._record: list[Noted] | None = None

    def __call__(self, message: Message, handle: Handler) -> Message:
        self.note(message, UP)
        reply = handle(message)
        self.note(reply, DOWN)
        return reply

    @property
    def bytes(self) -> Counter[tuple[str, str]]:
        """All that was counted, exactly."""
        waiting, self._waiting = self._waiting, []
        for (key, _), size in zip(waiting, settled([later for _, later in waiting]), strict=True):
            self._bytes[key] += size
        return self._bytes

    def note(self, message: Message, direction: str, size: int | None = None) -> None:
        """Count a message; `size` is that of its frame, where somebody has encoded it already."""
        key = NAMES[message.kind], direction
        found = size if size is not None else _size(message)
        if self._record is not None:
            self._record.append(Noted(key, found))
            return
        self.messages[key] += 1
        if not isinstance(found, Later):
            self._bytes[key] += found
            return
        self._waiting.append((key, found))
        if len(self._waiting) >= MOST_WAITING:
            _ = self.bytes

    @contextmanager
    def recording(self) -> Iterator["list[Noted]"]:
        """For a while messages are written down and not counted: `again` counts them, as often as they cross."""
        before, self._record = self._record, list[Noted]()
        try:
            yield self._record
        finally:
            self._record = before

    def again(self, crossed: "Sequence[Noted]", facts: Tensor) -> None:
        """Messages like those recorded have crossed; `facts` are what a device counts of them this time, in a row."""
        own, at = facts.clone(), 0  # the next ones are counted into the same memory
        for key, found in crossed:
            self.messages[key] += 1
            if isinstance(found, Later):
                self._waiting.append((key, Later((own[at : at + found.numbers],), found.size)))
                at += found.numbers
            else:
                self._bytes[key] += found
        if len(self._waiting) >= MOST_WAITING:
            _ = self.bytes

    def take(self, other: "Ledger") -> None:
        """Go on from what another one has counted."""
        self._bytes, self.messages, self.samples, self._waiting = other.bytes, other.messages, other.samples, []

    def per_sample(self, direction: str) -> float:
        """Bytes a training sample costs in one direction, all messages of a step together."""
        total = sum(self.bytes[kind.name, direction] for kind in TRAINING)
        return total / max(1, self.samples["training"])

    def weights_per_sample(self) -> float:
        """Bytes of relayed client weights, both directions, per training sample: what sharing heads costs."""
        total = sum(count for (kind, _), count in self.bytes.items() if kind == Kind.WEIGHTS.name)
        return total / max(1, self.samples["training"])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: one row per kind and direction."""
        rows = [
            {"kind": kind, "direction": way, "messages": self.messages[kind, way], "bytes": count}
            for (kind, way), count in sorted(self.bytes.items())
        ]
        return {"rows": rows, "samples": dict(self.samples)}

    def _repr_html_(self) -> str:
        rows = [tuple(row.values()) for row in self.as_dict()["rows"]]
        return table(("message", "direction", "messages", "bytes"), rows, title="what crossed")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Ledger":
        ledger = cls(Counter(data["samples"]))
        for row in data["rows"]:
            ledger._bytes[row["kind"], row["direction"]] = row["bytes"]
            ledger.messages[row["kind"], row["direction"]] = row["messages"]
        return ledger


def _size(message: Message) -> int | Later:
    for tensor in message.tensors.values():
        if not tensor.is_cpu:
            return wire.size_later(message)
    return wire.size(message)
