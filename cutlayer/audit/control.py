"""The positive control: an attack that fails on the open cut proves nothing by failing on a guard.

What it finds behind a guard it has found, whatever happened on the open cut.
"""

from collections.abc import Mapping
from typing import cast

from ..attacks import Attack
from ..metrics.images import CONSTANT
from ..training.plan.plan import Plan
from .floors import blind_guess
from .kinds import IMAGES, rebuilt
from .rows import Floors, Row, Scores

CONTROL_MARGIN = 0.1  # NCC, skill or correlation above the class mean that an attack must reach on the unguarded cut


CONTROL_ABOVE_CHANCE = 0.05  # accuracy or AUC above chance that an attack on another secret must reach there


def why_control_failed(attack: Attack, row: Row, class_mean: Scores, plan: Plan) -> str | None:
    """Why the positive control failed; None: the attack works on the unguarded cut."""
    if why := _why_broken(row):
        return f"on the unguarded cut {why}"
    kind = rebuilt(row)
    if kind is None:
        least = row["chance"] + CONTROL_ABOVE_CHANCE
        if row["value"] >= least:
            return None
        return f"on the unguarded cut it reached {row['metric']} {row['value']:.3f}, below its bar of {least:.3f}"
    if not row["recon_std"] >= CONSTANT:  # a single picture has no spread, and proves nothing either
        return f"on the unguarded cut it returned the same {kind.guess} for every {kind.one}"
    bar = attack.bar(repr(plan.data), repr(plan.net)) if kind is IMAGES else None
    metric, least = bar or (kind.control, (class_mean[kind.control] or 0.0) + CONTROL_MARGIN)
    reached = cast(Mapping[str, float], row)[metric]
    if not reached >= least:
        inverted = "; the negative scores better" if kind is IMAGES and row["ssim_inverted"] > row["ssim"] else ""
        return f"on the unguarded cut it reached {metric} {reached:.3f}, below its bar of {least:.3f}{inverted}"
    return None


def why_invalid(row: Row, control: str | None, floors: Floors | None = None) -> str | None:
    """Why a row counts for nothing; None: it counts.

    With `floors`, those of the row's seed, one that beats every blind guess counts though its control failed: a leak
    that was found is a leak. (On the open cut there is nothing to forgive: it is the control.)
    """
    kind = rebuilt(row)
    if kind is not None and not row["recon_std"] >= CONSTANT:
        return (
            f"the attack failed: it returned the same {kind.guess} for every {kind.one}, which says nothing about "
            "the guard"
        )
    reason = _why_broken(row)
    if reason is None and control is not None:
        reason = f"failed its control: {control}"
    if reason is None or (floors is not None and found_something(row, floors)):
        return None
    return f"the attack {reason}"


def found_something(row: Row, floors: Floors) -> bool:
    """Whether even the low end of what it reached is more than any guess without a message."""
    known, kind = row["interval"], rebuilt(row)
    if kind is None:
        return known["value"][0] > row["chance"]
    marks = dict(kind.statistics)
    if "identified" in known:
        marks["identified"] = "identified"
    return any(known[name][0] > blind_guess(floors, mark) for name, mark in marks.items() if name in known)


def _why_broken(row: Row) -> str | None:
    if not row.get("broken"):
        return None
    return f"returned NaN or infinity for {row['broken']} of {row['n']} samples: it diverged"
