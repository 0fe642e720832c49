"""All laws of one plug-in, and what became of each."""

from typing import Any, NamedTuple

from ...attacks import Attack
from ...core.outside.files import where
from ...core.spec import Spec
from ...data.base import Source
from ...data.partitions import Partition
from ...detectors import Detector, ServerDetector
from ...guards.base import Guard
from ...nets.base import Net
from ...rules.base import Rule
from ...training.laws import CHEAP_PARTITION, Broken, Law, in_words, its_text_is_itself
from ...training.protocols import Protocol
from . import attacks, detectors, guards, networks, protocols, rules, sources
from .toys import Skipped

_LAWS: dict[type, tuple[Law, ...]] = {
    Guard: guards.LAWS,
    Attack: attacks.LAWS,
    Rule: rules.LAWS,
    Detector: detectors.LAWS,
    ServerDetector: detectors.SERVER_LAWS,
    Partition: CHEAP_PARTITION,
    Net: networks.LAWS,
    Protocol: protocols.LAWS,
    Source: sources.LAWS,
}


class Finding(NamedTuple):
    """One law, and whether it holds; None: it says nothing of this plug-in, and `why`."""

    law: str
    holds: bool | None
    why: str = ""


def laws(thing: Spec) -> tuple[Law, ...]:
    """The laws of its kind; of every kind: its text is itself."""
    own = next((found for kind, found in _LAWS.items() if isinstance(thing, kind)), ())
    return (its_text_is_itself, *own)


def check(thing: Any) -> list[Finding]:
    """Try every law of a plug-in, on toys."""
    if not isinstance(thing, Spec):
        raise ValueError(f"{thing!r} is no plug-in: name one with its arguments, e.g. my.py:SignBit(scale=2)")
    found = [_tried(law, thing) for law in laws(thing)]
    if any(one.holds is False and not one.why.startswith(_NO_PLAN) for one in found):  # then that is said once
        found = [_after_the_broken(one) if one.why.startswith(_NO_PLAN) else one for one in found]
    return found


_NO_PLAN = "no plan takes it: "


def _after_the_broken(one: Finding) -> Finding:
    return one._replace(holds=None, why="no plan takes it before the broken laws hold")


def _tried(law: Law, thing: Spec) -> Finding:
    try:
        law(thing)
    except Broken as refused:
        return Finding(in_words(law), False, f"{_NO_PLAN}{refused}")
    except Skipped as skipped:
        return Finding(in_words(law), None, str(skipped))
    except (AssertionError, ValueError) as error:
        return Finding(in_words(law), False, str(error))
    except (Exception, SystemExit) as error:  # whatever a plug-in raises
        return Finding(in_words(law), False, where(error))
    return Finding(in_words(law), True)
