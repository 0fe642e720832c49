"""Weights to start from: a whole network's, of which each side takes only its own parts."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...core.batch import Task
from ...core.spec import Spec, spec
from ...nets.base import Net
from ...nets.weight_files import READERS
from ...nets.weights import load_weights

__all__ = ["Pretrained"]


@dataclass(frozen=True, repr=False)
class Pretrained(Spec):
    """Starts from a whole network's weights in a file; `skip_tail` leaves the classifier out: other classes."""

    path: str
    skip_tail: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"path names a file with a whole network's weights; got {self.path!r}")

    def fill(self, net: Net, task: Task, parts: dict[str, Any]) -> None:
        """These parts (head, body, tail) from the file, or a ValueError, and then nothing was loaded."""
        if wanted := {name: part for name, part in parts.items() if not (self.skip_tail and name == "tail")}:
            load_weights(self.path, net, task.shape, task.classes, **wanted)

    def agreed(self) -> "Pretrained":
        """What two machines compare: the file by what is in it, not by where it lies."""
        return replace(self, path=sha256(Path(self.path).read_bytes()).hexdigest()[:16])


def read_start(text: str) -> Pretrained | None:
    """As it is typed: a file's name alone, its spec, or none."""
    if text == "none":
        return None
    start = Pretrained(text) if Path(text).suffix in READERS else spec(text, "starts")
    assert isinstance(start, Pretrained)
    return start
