"""What a server puts up with."""

from dataclasses import dataclass

from .session import LARGEST
from .versions import VersionPolicy

GREETING = 10.0  # seconds a new connection has to say who it is
REVIEW = 5.0  # seconds between two looks at the certificate of an open connection, and at frames that do not end
QUIET = 20.0  # seconds without a byte before the other side is asked whether it is still there


@dataclass(frozen=True)
class Limits:
    """What a server puts up with."""

    message: int = LARGEST  # bytes of one message
    deadline: float = 300.0  # seconds without a sign of a client whose turn it is, before its turn is skipped
    every: int = 50  # steps between two snapshots, at the end of a turn
    batches: int = 1 << 16  # of a client in an epoch
    pace: float = 10.0  # a batch may take so many times as long as most have taken, in a turn as a whole
    visitors: int = 16  # connections that only predict or ask how things are
    connections: int | None = None  # of a client within ten seconds; None: 30
    frame: float = 600.0  # seconds from the first piece of a message to its last
    greeting: float = GREETING  # seconds a new connection has to say who it is
    review: float = REVIEW  # seconds between two looks at the certificate of an open connection
    quiet: float = QUIET  # seconds without a byte before a client is asked whether it is still there
    versions: VersionPolicy = VersionPolicy()  # how far those of a client may differ from ours

    @property
    def visits(self) -> int:
        """Connections of one client that only predict: half of all, so that one cannot shut out the others."""
        return max(1, -(-self.visitors // 2))
