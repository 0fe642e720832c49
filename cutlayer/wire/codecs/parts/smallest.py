"""Several ways to write one tensor: the one with the fewest bytes is looked for when it is needed."""

from dataclasses import dataclass
from functools import cached_property

from ...later import CountedThere, Later, together
from ..base import Prepared


@dataclass(frozen=True)
class Smallest:
    """The bytes of whichever way takes the fewest. Which one that is may hang on what is still on a device."""

    ways: tuple[Prepared, ...]

    @property
    def tag(self) -> int:
        return self._chosen.tag

    def size(self) -> int:
        return self._chosen.size()

    def size_later(self) -> int | Later:
        return together([size_later(way) for way in self.ways], min)

    def encode(self) -> memoryview:
        return self._chosen.encode()

    @cached_property
    def kept(self) -> int | None:
        """How many values are not zero, where one of the ways has counted them."""
        return next((way.kept for way in self.ways if hasattr(way, "kept")), None)

    @cached_property
    def _chosen(self) -> Prepared:
        return min(self.ways, key=lambda way: way.size())


def size_later(ready: Prepared) -> int | Later:
    """A prepared tensor's bytes, without waiting for its device where it knows how."""
    return ready.size_later() if isinstance(ready, CountedThere) else ready.size()
