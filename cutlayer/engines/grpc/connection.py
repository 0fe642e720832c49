"""A client's conversation as the server holds it: the coordinator's thread talks, the network's thread carries."""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

from ...wire.pieces import Pieces
from .session import WINDOW, Frame, Refused, Session

log = logging.getLogger("cutlayer.serve")
Push = Callable[[Sequence[bytes]], None]
PATIENCE = 4  # deadlines that one frame may take, whatever signs there are of its sender


class Lost(Exception):
    """The client's process is another one than before: it does not know where it stood."""


class Absent(Exception):
    """The client stayed away past the deadline."""


class Stopped(Exception):
    """The server was asked to end."""


class Wakeup:
    """Rings when a client comes or goes, or the server is to end: whoever waits for it need not look all the time."""

    def __init__(self) -> None:
        self._news = Condition()

    def ring(self) -> None:
        with self._news:
            self._news.notify_all()

    def wait_for(self, what: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until `what` holds, asked at every ring, or for `timeout` seconds; returns whether it does."""
        with self._news:
            return self._news.wait_for(what, timeout)


class ClientConnection:
    """One client: its session, and the connection that carries it at the moment, if any."""

    def __init__(self, name: str, number: int, limit: int, visitor: bool = False, frame: float = 600.0):
        self.name, self.number, self.limit, self.visitor = name, number, limit, visitor
        self.frame = frame  # seconds from the first piece of a frame to its last
        self.facts: dict[str, Any] = {}  # what the client last said of itself
        self.session_id = ""
        self.in_step = visitor  # whether the client stands where the coordinator believes it to stand
        self.strikes = 0  # times it was refused something in the middle of a conversation, or was there and silent
        self.absences = 0  # times it was waited for past the deadline while it was away
        self.connections = 0
        self.superseded = 0  # times another process took its place while it was connected
        self.heard_at = 0.0
        self.moved_at = self._began_at = 0.0  # when something new came; when the frame that is coming began
        self.waited_for = False
        self._session: Session | None = None
        self._push: Push | None = None
        self._close: Callable[[Refused | None], None] = lambda error: None
        self._inbox: deque[Frame] = deque()
        self._news = Condition()
        self._stopping = False
        self.wakeup = Wakeup()

    @property
    def connected(self) -> bool:
        return self._push is not None

    @property
    def full(self) -> bool:
        """As much is waiting to be read as one message may have: the connection has to wait."""
        with self._news:
            return sum(map(len, self._inbox)) > self.limit

    # -------------------------------------------------------------- the network's thread
    def connect(
        self, facts: dict[str, Any], push: Push, close: Callable[[Refused | None], None]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """A connection of this client has come: what to welcome it with, and what to send it again."""
        heard = facts.get("heard", 0)
        if not isinstance(heard, int) or heard < 0:
            raise Refused("garbage", "heard is a whole number")
        with self._news:
            known = self._session is not None and facts.get("session") == self.session_id
            again = self._session.again(heard) if self._session is not None and known else []
            self._supersede(facts)
            if not known:
                self._session, self.session_id = Session(self.limit), secrets.token_hex(8)
                self._inbox.clear()
                self.in_step = self.visitor
            assert self._session is not None
            self._push, self._close, self.facts = push, close, facts if not known else {**self.facts, **facts}
            self.connections += 1
            self.heard_at = self.moved_at = time.monotonic()
            self._news.notify_all()
            self.wakeup.ring()
            return {"session": self.session_id, "heard": self._session.heard, "number": self.number}, again

    def _supersede(self, facts: dict[str, Any]) -> None:
        """The connection that was there ends. To another process of the same name it is told for good."""
        if self._push is not None and facts.get("process") != self.facts.get("process"):
            self.superseded += 1
            log.warning("superseded", extra={"facts": {"client": self.name, "times": self.superseded}})
        who = f"{self.name} takes part from another process now"
        self._close(Refused("superseded", f"{who}: one name is for one process, see which of them is to go on"))

    def arrive(self, packet: bytes, push: Push) -> None:
        """A packet came in over the connection of `push`."""
        with self._news:
            if self._push is not push or self._session is None:
                return  # a connection that was replaced
            try:
                frame = self._take(self._session, packet)
            except Refused:
                self.strikes += 1
                raise
            if frame is not None:
                self._inbox.append(frame)
                self._news.notify_all()

    def _take(self, session: Session, packet: bytes) -> Frame | None:
        before = session.partial
        frame = session.take(packet)
        self.heard_at = time.monotonic()
        if frame is None and session.partial == before:
            return None  # it came before, and is no sign that anything goes on
        self.moved_at = self.heard_at
        if before is None:
            self._began_at = self.heard_at
        self._refuse_slow(session)
        if frame is not None and len(self._inbox) >= WINDOW:
            raise Refused("window", f"{WINDOW} frames that nobody asked for")
        return frame

    def review(self) -> None:
        """Refuse half a frame whose rest does not come. Asked every few seconds."""
        with self._news:
            if self._session is not None:
                self._refuse_slow(self._session)

    def _refuse_slow(self, session: Session) -> None:
        if session.partial is not None and time.monotonic() - self._began_at > self.frame:
            raise Refused("slow", f"a frame of {self.name} is not whole after {self.frame:.0f} seconds")

    def disconnect(self, push: Push) -> None:
        with self._news:
            if self._push is push:
                self._push, self._close = None, lambda error: None
                if self._session is not None:
                    self._session.broken()
                if self.visitor:
                    self.in_step = False
                self._news.notify_all()
                self.wakeup.ring()

    # --------------------------------------------------------------- the coordinator's thread
    def send(self, frame: bytes | bytearray | Pieces) -> None:
        with self._news:
            if not self.in_step or self._session is None:
                raise Lost(self.name)
            packets = self._session.send(frame)
            if self._push is not None:
                self._push(packets)

    def receive(self, deadline: float) -> Frame:
        """The next frame. `deadline` seconds without any sign of the client are too long."""
        with self._news:
            began = time.monotonic()
            self.waited_for = True
            try:
                while not self._inbox:
                    if self._stopping and not self.connected:
                        raise Stopped
                    if not self.in_step:
                        raise Lost(self.name)
                    latest = min(max(began, self.moved_at) + deadline, began + PATIENCE * deadline)
                    left = latest - time.monotonic()
                    if left <= 0:
                        raise Absent(self.name)
                    self._news.wait(left)
                return self._inbox.popleft()
            finally:
                self.waited_for = False

    def agree(self) -> None:
        """From here on the client and the coordinator stand at the same place."""
        with self._news:
            self.in_step = self._session is not None

    def drop(self, error: Refused | None = None) -> None:
        """End the session: when the client comes back, it starts a new one."""
        with self._news:
            self._session, self.session_id, self.in_step = None, "", False
            self._inbox.clear()
            close, self._push, self._close = self._close, None, lambda error: None
            close(error)
            self._news.notify_all()
            self.wakeup.ring()

    def stop(self) -> None:
        """Do not wait for this client once it is away: the server ends."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
            self.wakeup.ring()

    def goodbye(self) -> None:
        """Tell the client that the server goes away for now."""
        with self._news:
            self._close(None)
