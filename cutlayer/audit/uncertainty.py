"""How sure the figures of a row are: what is kept of its samples, and its figures over draws of them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..core.seeds import derive
from ..metrics.bootstrap import Figures, interval, redrawn, redrawn_areas
from .kinds import rebuilt
from .rows import Sampled


def sampled(scores: Tensor, units: list[int] | None) -> Sampled:
    """What each sample scored, as it is kept: six digits, so that what follows from audit.json follows exactly."""
    return {"scores": [round(score, 6) for score in scores.tolist()], "units": units}


def draws(row: Mapping[str, Any]) -> Figures:
    """A row's figures over draws of its samples: "value"; of what was rebuilt also "p90" and "above_half", of
    pictures "identified", and of texts with names in them "names".

    The seed follows from the row's name: the same rows give the same intervals.
    """
    own, seed = row["sampled"], derive(row["seed"], "draws", row["guard"], row["attack"])
    if "strangers" in row:
        other = row["strangers"]
        return redrawn_areas(own["scores"], other["scores"], (own["units"], other["units"]), seed)
    found = redrawn(own["scores"], own["units"], seed)
    if rebuilt(row) is None:
        return {"value": found["value"]}
    for name in ("identified", "names"):  # rows of before this was measured have none, and those of other data
        if (told := row.get(f"{name}_each")) is not None:
            found = {**found, name: redrawn(told["scores"], told["units"], seed)["value"]}
    return found


def intervals(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """95 % intervals of these."""
    return {name: [round(end, 6) for end in interval(drawn)] for name, drawn in draws(row).items()}
