"""Versions of the parties, compared when a client comes: which differences a run puts up with.

The protocol's version has to be the same. Of the package and of torch a policy says how far they may differ: numbers
computed by two versions of torch are seldom the same to the last bit, and a run that is resumed elsewhere shows it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import __version__
from .session import VERSION, Refused

LEVELS = ("same", "patch", "minor", "any")  # what may differ: nothing, 2.8.x, 2.x, everything
NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def own_versions() -> dict[str, str]:
    """What a client says of itself, beside the version of the protocol."""
    return {"cutlayer": __version__, "torch": torch.__version__}


@dataclass(frozen=True)
class VersionPolicy:
    """How far the versions of a client may be from the server's."""

    cutlayer: str = "same"
    torch: str = "patch"

    def __post_init__(self) -> None:
        for name, level in vars(self).items():
            if level not in LEVELS:
                raise ValueError(f"--versions {name}={level}: how far it may differ is one of {', '.join(LEVELS)}")

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "VersionPolicy":
        """From `torch=minor` and the like."""
        given: dict[str, str] = {}
        for text in texts:
            name, _, level = text.partition("=")
            if name not in cls.__dataclass_fields__:
                raise ValueError(
                    f"--versions is cutlayer=LEVEL or torch=LEVEL, with {', '.join(LEVELS)}; got {text!r}"
                )
            if name in given:
                raise ValueError(f"--versions names {name} twice: leave one out")
            given[name] = level
        return cls(**given)

    def refuse(self, facts: Mapping[str, Any]) -> None:
        """A client whose versions are too far from ours."""
        if facts.get("protocol") != VERSION:
            raise Refused(
                "version", f"this server speaks version {VERSION}, not {facts.get('protocol')}: update the older side"
            )
        theirs = facts.get("versions")
        theirs = theirs if isinstance(theirs, dict) else {}
        for name, ours in own_versions().items():
            level, other = getattr(self, name), str(theirs.get(name, "unknown"))[:40]
            if not alike(ours, other, level):
                raise Refused(
                    "version",
                    f"{name} is {ours} here and {other} there: install the same on both sides, or let the server "
                    f"allow it with --versions {name}={_needed(ours, other)}",
                )


def alike(one: str, other: str, level: str) -> bool:
    """Whether two versions differ by no more than `level`. How torch was built (+cpu, +cu128) does not count."""
    if level == "any":
        return True
    first, second = (NUMBERS.match(text) for text in (one, other))
    if first is None or second is None:
        return one == other
    if level == "same":
        return one.partition("+")[0] == other.partition("+")[0]
    kept = {"patch": 2, "minor": 1}[level]
    return first.groups()[:kept] == second.groups()[:kept]


def _needed(one: str, other: str) -> str:
    return next(level for level in LEVELS if alike(one, other, level))
