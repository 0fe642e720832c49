"""What the server saw, to the byte: recorded while it happens, kept in one file, read back as messages."""

import struct
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from ..core.files import whole
from ..core.message import Handler, Kind, Message
from . import frames

LIMIT = 256 << 20  # bytes kept: the newest
RECORDED = (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.PREDICT)

_MAGIC = b"CLT1"
_LENGTH = struct.Struct("<I")


class Recorder:
    """A server-side watcher that keeps the frames of what came in, newest first to stay, within `limit` bytes."""

    def __init__(self, limit: int = LIMIT):
        if limit < 1:
            raise ValueError(f"a recording keeps at least one byte; got {limit}")
        self.limit, self.bytes = limit, 0
        self._frames: deque[bytes] = deque()

    def __call__(self, message: Message, handle: Handler) -> Message:
        if message.kind in RECORDED:
            self.keep(bytes(frames.encode(message)))
        return handle(message)

    def keep(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.bytes += len(frame)
        while self.bytes > self.limit:
            self.bytes -= len(self._frames.popleft())

    def save(self, path: Path) -> None:
        """The file is whole or the old one."""
        with whole(path) as beside:
            beside.touch(mode=0o600)  # images can be read out of it
            with beside.open("wb") as file:
                file.write(_MAGIC)
                for frame in self._frames:
                    file.write(_LENGTH.pack(len(frame)))
                    file.write(frame)

    def load(self, path: Path) -> None:
        """Go on where a recording was left."""
        for frame in _frames(path):
            self.keep(frame)


def read(path: Path) -> list[Message]:
    """The messages of a recording, in the order they came."""
    try:
        return [frames.decode(frame) for frame in _frames(path)]
    except frames.WireError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _frames(path: Path) -> Iterable[bytes]:
    if not path.exists():
        raise FileNotFoundError(f"there is no recording {path}: train with --record")
    data = path.read_bytes()
    if data[:4] != _MAGIC:
        raise ValueError(f"{path} is not a recording of messages")
    at = 4
    while at < len(data):
        if at + 4 > len(data):
            raise ValueError(f"{path} is damaged: it ends inside a message")
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4 + length
        if at > len(data):
            raise ValueError(f"{path} is damaged: it ends inside a message")
        yield data[at - length : at]
