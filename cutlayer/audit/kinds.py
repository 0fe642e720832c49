"""What an audit rebuilds, and how that is scored and spoken of: images, records of a table, series, or texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of input. `statistics` are the figures it is graded by, each against the same of a blind guess."""

    secret: str  # the word in a row and in --secrets
    one: str
    guess: str  # what an attacker makes of it
    metric: str  # of a row
    said: str  # the metric, to a reader
    statistics: Mapping[str, str]
    control: str  # the figure that must be above a blind guess on the open cut


IMAGES = Kind("images", "image", "picture", "ssim", "SSIM", {"value": "ssim_either", "p90": "ssim_p90"}, "ncc")
RECORDS = Kind("records", "record", "record", "skill", "skill", {"value": "skill", "p90": "skill_p90"}, "skill")
SERIES = Kind(
    "series", "series", "curve", "correlation", "correlation",
    {"value": "correlation_either", "p90": "correlation_p90"}, "correlation_either",
)  # fmt: skip
TEXTS = Kind(
    "texts", "text", "text", "token_accuracy", "token accuracy",
    {"value": "token_accuracy", "p90": "token_p90", "names": "names_found"}, "token_accuracy",
)  # fmt: skip
KINDS = {kind.secret: kind for kind in (IMAGES, RECORDS, SERIES, TEXTS)}


def rebuilt(row: Mapping[str, Any]) -> Kind | None:
    """What a row's attack rebuilt; None: it was after another secret."""
    return KINDS.get(row.get("secret", "images"))


def of_floors(floors: Mapping[str, Mapping[str, Any]]) -> Kind:
    """What the audit with these floors rebuilds."""
    there = {name for figures in floors.values() for name in figures}
    return next((kind for kind in (RECORDS, SERIES, TEXTS) if kind.statistics["value"] in there), IMAGES)


def in_its_words(kind: Kind, sentence: str) -> str:
    """A sentence about images, about inputs of this kind."""
    return sentence.replace("images", kind.secret).replace("image", kind.one)
