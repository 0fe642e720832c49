"""Errors that tell a user what to do. The command line prints them as one sentence, without a trace."""


class ProtocolError(RuntimeError):
    """A message that does not fit the conversation it came in."""


class NonFinite(RuntimeError):
    """Training left the numbers; the message names the step and the term."""


class Interrupted(RuntimeError):
    """The user stopped a run; its state is on disk."""

    exit_code = 130


class Halt(RuntimeError):
    """A client's own detector has stopped it; its state is as it was before the next upload."""

    exit_code = 5


class OffPlan(Halt):
    """A server asked for more than the plan has, or brought what no client made: this client does not go on."""

    exit_code = 7


class DiskFull(OSError):
    """There is no room for a file; what was there before is still there."""

    exit_code = 8


# The exit code of a command that came to its end, but with a leak budget that was not kept.
BUDGET_NOT_KEPT = 6
# … with a table in which cells are missing that an error has ended.
CELLS_FAILED = 9

USER_ERRORS = (ValueError, OSError, MemoryError, ProtocolError, NonFinite, Interrupted, Halt)


NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # as torch puts it on a CPU or GPU


def lacks_memory(error: Exception) -> bool:
    """Whether memory did not suffice: on a CPU torch has no class of errors for that."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in NO_MEMORY)
