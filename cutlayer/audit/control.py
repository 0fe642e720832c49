"""The positive control: an attack that fails on the open cut proves nothing by failing on a guard."""

from collections.abc import Mapping
from typing import cast

from ..attacks import Attack
from ..training.plan.plan import Plan
from .rows import Row, Scores

CONTROL_MARGIN = 0.1  # NCC above the class-mean image that an attack must reach on the unguarded cut


CONTROL_ABOVE_CHANCE = 0.05  # accuracy or AUC above chance that an attack on another secret must reach there


CONSTANT = 1e-3  # standard deviation across reconstructions below which they are all the same picture


def why_control_failed(attack: Attack, row: Row, class_mean: Scores, plan: Plan) -> str | None:
    """Why the positive control failed; None: the attack works on the unguarded cut."""
    if attack.secret != "images":
        least = row["chance"] + CONTROL_ABOVE_CHANCE
        if row["value"] >= least:
            return None
        return f"on the unguarded cut it reached {row['metric']} {row['value']:.3f}, below its bar of {least:.3f}"
    if row["recon_std"] < CONSTANT:
        return "on the unguarded cut it returned the same picture for every image"
    bar = attack.bar(repr(plan.data), repr(plan.net))
    metric, least = bar or ("ncc", (class_mean["ncc"] or 0.0) + CONTROL_MARGIN)
    reached = cast(Mapping[str, float], row)[metric]
    if reached < least:
        inverted = "; the negative scores better" if row["ssim_inverted"] > row["ssim"] else ""
        return f"on the unguarded cut it reached {metric} {reached:.3f}, below its bar of {least:.3f}{inverted}"
    return None


def why_invalid(row: Row, control: str | None) -> str | None:
    if control is not None:
        return f"the attack failed its control: {control}"
    if row["secret"] == "images" and row["recon_std"] < CONSTANT:
        return "the attack failed: it returned the same picture for every image, which says nothing about the guard"
    return None
