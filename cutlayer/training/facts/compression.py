"""What compression is worth, in the units people compare: bits a feature, bits an input pixel, and the whole ratio.

Papers quote one direction, or one message of four, or leave side information out. Here a ratio is that of what the
same messages would take as plain floats, without a guard, to the bytes that were counted on the wire.
"""

from math import prod
from typing import Any

from ...core.batch import Task
from ...core.message import Kind
from ...wire.ledger import DOWN, UP, Ledger
from ..labels import label_shape
from ..plan.plan import Plan
from ..plan.shapes import cut_shapes

FLOAT = 4  # bytes
RATES = ("bits per feature", "bits per input pixel", "uplink ratio", "total ratio")
UNITS = {1: "number", 2: "place"}  # what rows of a table and signals have for pixels
# What is in a message. Labels that stay home: the U shape. Labels that travel: LOSS, and no answer to learn from.
_U_SHAPE = {"FORWARD up": "z up", "FORWARD down": "u down", "BACKWARD up": "du up", "BACKWARD down": "dz down"}
_VANILLA = {"LOSS up": "z, y up", "LOSS down": "loss down", "BACKWARD up": "scale up", "BACKWARD down": "dz down"}
_LIFT = {"LIFT up": "decoder up", "LIFT down": "decoder down"}


def rates(plan: Plan, task: Task, ledger: Ledger) -> dict[str, Any]:
    """Figures of a training run, per sample; None before anything was learnt, or where nothing crosses a cut."""
    samples = ledger.samples["training"]
    if not samples or not plan.protocol.crosses:
        return dict.fromkeys(RATES)
    cut = cut_shapes(plan, task)
    features, answers = prod(cut.z), prod(cut.u)
    labels_stay = plan.protocol.labels_stay_home
    forward = Kind.FORWARD if labels_stay else Kind.LOSS
    sent = ledger.bytes[forward.name, UP] / samples
    # Plain floats: z up and dz down; in the U shape u down and du up as well. A label is eight bytes, of each pixel
    # where every pixel has one.
    up = FLOAT * features + (FLOAT * answers if labels_stay else 8 * prod(label_shape(plan, task)))
    down = FLOAT * features + (FLOAT * answers if labels_stay else 0)
    other = (ledger.bytes[Kind.LIFT.name, UP] + ledger.bytes[Kind.LIFT.name, DOWN]) / samples
    spent = ledger.per_sample(UP) + ledger.per_sample(DOWN)
    pixels = max(1, prod(task.shape[1:] or task.shape))  # of a text its tokens, of a record its numbers
    return {
        "bits per feature": 8 * sent / features,
        "bits per input pixel": 8 * sent / pixels,
        "uplink ratio": up / ledger.per_sample(UP),
        "total ratio": (up + down) / (spent + other),
        "by message": _by_message(ledger, samples),
        "amortised": other,
        "cost model": cost_model(plan, task, sent),
        "input unit": "token" if task.vocabulary else UNITS.get(len(task.shape), "pixel"),
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


def crossing(found: dict[str, Any]) -> dict[str, float]:
    """Bytes a sample of each message, by what is in it and where it goes."""
    counted = found["by message"]
    names = (_VANILLA if "LOSS up" in counted else _U_SHAPE) | _LIFT
    return {names.get(name, name): count for name, count in counted.items()}


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """The model on paper beside what was counted, over the two messages it knows and over all, and what it omits."""
    model, told = found["cost model"], crossing(found)
    known = next(iter(told.values())) + told.get("dz down", 0.0)
    left_out = {name: count for name, count in told.items() if name not in ("z up", "z, y up", "dz down")}
    back = told.get("dz down", 0.0) / (model["plain"] / 2)
    omits = ", ".join(f"{name} {count:,.0f}" for name, count in left_out.items()) + " bytes"
    if abs(back - 1) > 0.05:
        omits += f"; that dz takes {100 * back:.0f} % of plain floats"
    return {
        "rho": model["rho"],
        "model": model["ratio"],
        "z and dz": model["plain"] / known,
        "all": found["total ratio"],
        "omits": omits,
    }


def in_units(name: str, found: dict[str, Any]) -> str:
    """The name of a rate as readers of these data have it: texts have tokens, records numbers, signals places."""
    return name.replace("pixel", found.get("input unit", "pixel"))


def lines(found: dict[str, Any]) -> list[str]:
    """The figures of a run in words; none before anything was learnt."""
    if found["total ratio"] is None:
        return []
    spent = ", ".join(f"{name} {count:,.1f}" for name, count in crossing(found).items())
    beside = compared(found)
    return [
        ", ".join(f"{in_units(name, found)} {found[name]:.3g}" for name in RATES),
        f"bytes a sample by message: {spent}",
        f"cost model 2/(1 + rho) = {beside['model']:.2f} with rho = {beside['rho']:.3f}; counted over z and dz "
        f"{beside['z and dz']:.2f}, over everything {beside['all']:.2f} (the model omits {beside['omits']})",
    ]
