"""Frames that arrive once and in order, over connections that may break at any moment.

A packet is one message of the transport:

    header   "CP", type, flags, number of the frame (u32), frames heard so far (u32), bytes of the whole frame (u32)
    data     a piece of a frame, or JSON

Frames are numbered on each side. What the other side has not confirmed is kept; on a new connection both say how much
they have heard, and only the rest is sent again. What comes twice is dropped.
"""

import json
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from ...core.errors import ProtocolError
from ...wire.pieces import Pieces

VERSION = 1
CHUNK = (1 << 20) + (1 << 16)  # bytes of a frame in one packet: 1 MiB of numbers, and what describes them
LARGEST = 256 << 20  # bytes of a frame, unless a limit is given
WINDOW = 8  # frames that may wait for their confirmation
SMALL = 64 << 10  # bytes of a greeting

HEADER = struct.Struct("<2sBBIII")
_LAST = 1
Frame = memoryview  # what came in; whoever gets it may do with it what they like


class Type(IntEnum):
    """What a packet is."""

    HELLO = 1  # client: who, which plan, what it has heard
    WELCOME = 2  # server: which session, what it has heard
    DATA = 3  # a piece of a frame
    REFUSED = 4  # server: a named error; the connection ends
    BYE = 5  # server: it goes away for now


_TYPES = {int(one): one for one in Type}  # every packet asks, and an enum takes its time


class Refused(ProtocolError):
    """What one side does not accept of the other, by name."""

    exit_code = 3

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name = name


class Session:
    """One side of a conversation. It knows nothing of sockets: packets in, packets out."""

    def __init__(self, limit: int = LARGEST):
        self.limit = limit
        self.sent = self.heard = 0
        self._waiting: deque[tuple[int, list[bytes]]] = deque()  # packets of what was sent and is not confirmed
        self._piece: memoryview | None = None  # room for a frame whose first bytes have come,
        self._have = 0  # and how many they are

    @property
    def waiting(self) -> int:
        """Frames that the other side has not confirmed."""
        return len(self._waiting)

    @property
    def partial(self) -> int | None:
        """Bytes of a frame whose rest is still to come; None between two frames."""
        return None if self._piece is None else self._have

    def send(self, frame: bytes | bytearray | Pieces) -> list[bytes]:
        """The packets of a new frame, whose bytes are copied once, into them. They are kept until the other side has
        it."""
        if len(frame) > self.limit:
            raise Refused("oversize", f"a frame of {len(frame)} bytes is over the limit of {self.limit}")
        if len(self._waiting) >= WINDOW:
            raise Refused("window", f"{WINDOW} frames wait for their confirmation already")
        self.sent += 1
        packets = list(self._packets(self.sent, frame if isinstance(frame, Pieces) else Pieces([frame])))
        self._waiting.append((self.sent, packets))
        return list(packets)

    def again(self, heard: int) -> list[bytes]:
        """On a new connection: the packets of all frames the other side has not heard."""
        first = self._waiting[0][0] if self._waiting else self.sent + 1
        if not first - 1 <= heard <= self.sent:
            raise Refused("session", f"the other side heard {heard} frames, of {self.sent} that were sent")
        self._piece = None
        self._confirm(heard)
        return [self._told_anew(packet) for _, packets in self._waiting for packet in packets]

    def take(self, packet: bytes) -> Frame | None:
        """A packet that came in; returns a frame when it is whole and new. Nothing has changed when it raises."""
        kind, flags, number, heard, total = head(packet)
        if kind is not Type.DATA:
            raise Refused("garbage", f"a packet of type {kind.name} inside a conversation")
        if total > self.limit:
            raise Refused("oversize", f"a frame of {total} bytes is over the limit of {self.limit}")
        if heard > self.sent:
            raise Refused("session", f"the other side confirms frame {heard} of {self.sent}")
        if number > self.heard + 1:
            raise Refused("session", f"frame {number} comes after frame {self.heard}")
        if number == self.heard + 1:
            self._refuse_lies(number, bool(flags & _LAST), len(packet) - HEADER.size, total)
        self._confirm(heard)
        if number <= self.heard:
            return None  # it came before
        data = memoryview(packet)[HEADER.size :]
        if flags & _LAST and self._piece is None:
            self.heard = number
            return data  # whole in one packet, as most are: no need to copy it
        if self._piece is None:  # memory that nobody has touched yet: who only claims to send much gets none
            self._piece, self._have = np.empty(total, np.uint8).data, 0
        self._piece[self._have : self._have + len(data)] = data
        self._have += len(data)
        if not flags & _LAST:
            return None
        frame, self._piece = self._piece, None
        self.heard = number
        return frame

    def _refuse_lies(self, number: int, last: bool, count: int, total: int) -> None:
        """A frame has one size, every piece brings it nearer to its end, and the last one reaches it."""
        if self._piece is not None and total != len(self._piece):
            raise Refused("garbage", f"frame {number} claimed {len(self._piece)} bytes, now it claims {total}")
        have = (self.partial or 0) + count
        if have > total or last != (have == total) or not (count or last):
            raise Refused("garbage", f"frame {number} does not have the {total} bytes it claims")

    def broken(self) -> None:
        """The connection is gone: half a frame is no frame."""
        self._piece = None

    def _confirm(self, heard: int) -> None:
        while self._waiting and self._waiting[0][0] <= heard:
            self._waiting.popleft()

    def _packets(self, number: int, frame: Pieces) -> Iterator[bytes]:
        total = len(frame)
        for start in range(0, max(1, total), CHUNK):
            last = start + CHUNK >= total
            top = HEADER.pack(b"CP", Type.DATA, _LAST if last else 0, number, self.heard, total)
            yield b"".join((top, *(frame.parts if total <= CHUNK else frame.between(start, start + CHUNK))))

    def _told_anew(self, packet: bytes) -> bytes:
        """A packet as it was sent before, with what has been heard by now."""
        magic, kind, flags, number, _, total = HEADER.unpack_from(packet)
        return b"".join(
            (HEADER.pack(magic, kind, flags, number, self.heard, total), memoryview(packet)[HEADER.size :])
        )


def head(packet: bytes) -> tuple[Type, int, int, int, int]:
    """The header of a packet, or a refusal."""
    if len(packet) < HEADER.size or len(packet) > HEADER.size + CHUNK:
        raise Refused("garbage", f"{len(packet)} bytes are no packet of this protocol")
    magic, kind, flags, number, heard, total = HEADER.unpack_from(packet)
    if magic != b"CP" or kind not in _TYPES or flags & ~_LAST:
        raise Refused("garbage", "these bytes are no packet of this protocol")
    return _TYPES[kind], flags, number, heard, total


def note(kind: Type, facts: Mapping[str, Any]) -> bytes:
    """A packet of plain facts: greetings and refusals."""
    data = json.dumps(facts).encode()
    return HEADER.pack(b"CP", kind, _LAST, 0, 0, len(data)) + data


def read_note(packet: bytes, *expected: Type) -> dict[str, Any]:
    """The facts of a greeting. A refusal is raised as the error it is."""
    kind, _, _, _, total = head(packet)
    # Only a server refuses: a client that did could choose the names that are counted.
    if kind not in expected and (kind is not Type.REFUSED or Type.HELLO in expected):
        wanted = " or ".join(one.name for one in expected)
        raise Refused("garbage", f"{wanted} was expected, {kind.name} came")
    if len(packet) > SMALL:
        raise Refused("oversize", f"a greeting of {len(packet)} bytes is over the limit of {SMALL}")
    if total != len(packet) - HEADER.size:
        raise Refused("garbage", f"a greeting of {len(packet) - HEADER.size} bytes that claims {total}")
    try:
        facts = json.loads(bytes(packet[HEADER.size :]))
    except (ValueError, RecursionError) as error:
        raise Refused("garbage", "a greeting that cannot be read") from error
    if not isinstance(facts, dict):
        raise Refused("garbage", "a greeting that is no list of facts")
    if kind is Type.REFUSED:
        raise Refused(str(facts.get("name", "?")), str(facts.get("text", "refused")))
    return facts
