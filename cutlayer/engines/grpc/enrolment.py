"""How a client says who it is, and learns which client of the run that makes it."""

import logging
import secrets
import time
from contextlib import suppress
from typing import Any

from ...core.batch import Task
from ...core.errors import ProtocolError
from ...training.plan.plan import Plan
from .channel import PERSISTENT, Address, GaveUp, ServerChannel, call, told
from .service import ENROLL, SAID
from .session import VERSION, Refused, Type, note, read_note
from .versions import own_versions

log = logging.getLogger("cutlayer.join")

FAREWELL = 5.0  # seconds for which a server is looked for to be told that nothing comes of it


def in_greeting(task: Task) -> list[Any]:
    """What the data are like, as a server reads it."""
    return [*task[:2], dict(task.attributes), task.vocabulary]


class Enrolment:
    """One client's name in a run, in one process."""

    def __init__(self, plan: Plan, name: str, address: Address):
        self.plan, self.name, self.address = plan, name, address
        self._process = secrets.token_hex(8)

    def who(self) -> dict[str, Any]:
        return {
            "protocol": VERSION,
            "versions": own_versions(),
            "name": self.name,
            "plan": self.plan.fingerprint(),
            "fields": self.plan.agreed(),
            "process": self._process,
        }

    def leave(self, task: Task | None) -> None:
        """Tell the server that this client cannot take part, or it would be waited for. The reason may tell of the
        data and stays here; what they are like (None: not known) the server is told of anyway."""
        facts = self.who() | {"leaves": True} | ({} if task is None else {"task": in_greeting(task)})
        with suppress(Exception):  # why it leaves is what its owner must hear, and nothing else
            call(self.address, ENROLL, note(Type.HELLO, facts), FAREWELL)

    def enrol(self, channel: ServerChannel) -> int:
        """Which client this is. The server says it once; another number later would repeat another's randomness."""
        began = time.monotonic()
        while True:
            try:
                patience = min(10.0, channel.give_up)
                facts = read_note(call(self.address, ENROLL, note(Type.HELLO, self.who()), patience), Type.WELCOME)
                number = told(facts, "number", int)
                if not 0 <= number < self.plan.clients:
                    raise ProtocolError(f"the server calls this client number {number} of {self.plan.clients}")
                said = {"server": self.address.target, "plan": self.plan.fingerprint(), "number": number}
                log.info("plan agreed", extra={"facts": said})
                return number
            except (GaveUp, Refused) as error:
                passing = isinstance(error, GaveUp) or error.name in PERSISTENT
                if not passing or time.monotonic() - began > channel.give_up:
                    name = error.name if isinstance(error, Refused) else "away"
                    log.error("refused", extra={"facts": {"error": name, "text": str(error)[:SAID]}})
                    raise
                log.info("waiting", extra={"facts": {"for": self.address.target, "why": str(error)}})
                time.sleep(0.5)
