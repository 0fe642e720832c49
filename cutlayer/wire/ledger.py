"""What crossed and how many bytes it took: facts, never contents."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..core.message import Handler, Kind, Message
from . import frames as wire

UP, DOWN = "up", "down"
TRAINING = (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


@dataclass
class Ledger:
    """A watcher that counts messages and the bytes of their frames, per kind and direction.

    How many samples a message is about only the client knows (guards let samples share rows): it counts them itself.
    """

    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)

    def __call__(self, message: Message, handle: Handler) -> Message:
        self.note(message, UP)
        reply = handle(message)
        self.note(reply, DOWN)
        return reply

    def note(self, message: Message, direction: str, size: int | None = None) -> None:
        """Count a message; `size` is that of its frame, where somebody has encoded it already."""
        self.bytes[message.kind.name, direction] += wire.size(message) if size is None else size
        self.messages[message.kind.name, direction] += 1

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

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Ledger":
        ledger = cls(samples=Counter(data["samples"]))
        for row in data["rows"]:
            ledger.bytes[row["kind"], row["direction"]] = row["bytes"]
            ledger.messages[row["kind"], row["direction"]] = row["messages"]
        return ledger
