"""A frame on its way out, before it is joined: where its bytes lie. Whoever sends it copies each of them once."""

from collections.abc import Iterator, Sequence

Buffer = bytes | bytearray | memoryview


class Pieces:
    """Bytes in several places, in their order. They are looked at and not kept: what they lie in may change later."""

    def __init__(self, parts: Sequence[Buffer]):
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def between(self, start: int, end: int) -> Iterator[memoryview]:
        """Where the bytes from `start` to `end` lie."""
        at = 0
        for part in self.parts:
            if at < end and start < at + len(part):
                yield memoryview(part)[max(0, start - at) : end - at]
            at += len(part)
