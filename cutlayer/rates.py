"""What compression is worth, in the units people compare: bits a feature, bits an input pixel, and the whole ratio.

Papers quote one direction, or one message of four, or leave side information out. Here a ratio is that of what the
same messages would take as plain floats, without a guard, to the bytes that were counted on the wire.
"""

from math import prod
from typing import Any

from .batch import Task
from .ledger import DOWN, UP, Ledger
from .message import Kind
from .plan import Plan, cut_shapes

FLOAT = 4  # bytes


def rates(plan: Plan, task: Task, ledger: Ledger) -> dict[str, Any]:
    """Figures of a training run, per sample; None before anything was learnt."""
    samples = ledger.samples["training"]
    if not samples:
        return {"bits per feature": None, "bits per input pixel": None, "uplink ratio": None, "total ratio": None}
    cut = cut_shapes(plan, task)
    features, answers = prod(cut.z), prod(cut.u)
    labels_stay = plan.protocol.labels_stay_home
    forward = Kind.FORWARD if labels_stay else Kind.LOSS
    sent = ledger.bytes[forward.name, UP] / samples
    # Plain floats: z up and dz down; in the U shape u down and du up as well. A label is eight bytes.
    up = FLOAT * features + (FLOAT * answers if labels_stay else 8)
    down = FLOAT * features + (FLOAT * answers if labels_stay else 0)
    other = (ledger.bytes[Kind.LIFT.name, UP] + ledger.bytes[Kind.LIFT.name, DOWN]) / samples
    spent = ledger.per_sample(UP) + ledger.per_sample(DOWN)
    return {
        "bits per feature": 8 * sent / features,
        "bits per input pixel": 8 * sent / max(1, prod(task.shape[1:])),
        "uplink ratio": up / ledger.per_sample(UP),
        "total ratio": (up + down) / (spent + other),
        "by message": _by_message(ledger, samples),
        "amortised": other,
        "cost model": cost_model(plan, task, sent),
    }


def _by_message(ledger: Ledger, samples: int) -> dict[str, float]:
    """Bytes a sample of each message of a step, in the order they travel."""
    kinds = [kind for kind in (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.LIFT) if ledger.messages[kind.name, UP]]
    return {f"{kind.name} {way}": ledger.bytes[kind.name, way] / samples for kind in kinds for way in (UP, DOWN)}


def cost_model(plan: Plan, task: Task, sent: float) -> dict[str, float]:
    """Thesis, Table 2.1, per sample and without weights: 2q plain, (1 + ρ)q compressed, q being the floats of z.

    ρ is what message 1 takes of q. The model knows neither u nor du, and compresses no gradient.
    """
    q = FLOAT * prod(cut_shapes(plan, task).z)
    rho = sent / q
    return {"rho": rho, "plain": 2.0 * q, "compressed": (1 + rho) * q, "ratio": 2 / (1 + rho)}
