"""An attacker that lacks something it can only find out at work: it says what, and is listed as not tried."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..attacks import Attack
from ..core.errors import lacks_memory


class NotTried(ValueError):
    """The attack did not take place, which says nothing about the guard; the message says what it lacked."""


@contextmanager
def refusals(attack: Attack, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds, and memory that does not suffice, are the attack's refusal."""
    try:
        yield
    except NotTried:
        raise
    except kinds as error:
        raise NotTried(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise NotTried(
            f"{attack} needs more memory than there is here: give it a narrower network, smaller batches or fewer "
            "auxiliary images, or a larger machine"
        ) from error
