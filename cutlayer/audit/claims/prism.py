"""PRISM (Madill's thesis, ch. 3): what helps the task goes to the server, what tells an attribute stays home."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from .base import (
    DOES_NOT,
    HOLDS,
    NOT_MEASURED,
    PARTLY,
    Data,
    Earlier,
    Experiment,
    Finding,
    guard_accuracy,
    over_seeds,
    read_by,
)

PAPER = "Thesis ch. 3 (PRISM)"
GUARD = "Prism(keep=0.1, privacy='adversary', attribute="


def _attribute(data: Data, guard: str) -> list[float]:
    """How often an attribute is inferred, by seed."""
    best: dict[int, float] = {}
    for row in data["rows"]:
        if row["guard"] == guard and row.get("secret") == "attribute" and not row.get("ceiling"):
            best[row["seed"]] = max(row["value"], best.get(row["seed"], 0.0))
    return list(best.values())


def _chance(data: Data) -> float:
    """Of always naming the commonest value."""
    rows = [row for row in data["rows"] if row.get("secret") == "attribute"]
    return mean(row.get("chance") or 0.0 for row in rows)


def _judge(paper: tuple[float, float, float]) -> Any:
    """(points lost, adversary, SSIM) of PRISM (0.9) in Table 3.2."""
    lost_there, adversary, ssim = paper

    def judge(results: Mapping[str, Data]) -> Finding:
        (data,) = results.values()
        guard = next((row["guard"] for row in data["rows"] if row["guard"].startswith("Prism")), None)
        if guard is None:
            return Finding(NOT_MEASURED, "no row of Prism")
        return _table(data, guard, lost_there, adversary, ssim)

    return judge


def _table(data: Data, guard: str, lost_there: float, adversary: float, ssim: float) -> Finding:
    pairs = zip(guard_accuracy(data, "none"), guard_accuracy(data, guard), strict=True)
    lost = over_seeds("points lost", [one - other for one, other in pairs], lost_there, points=True)
    read, bare = read_by(data, guard, ceiling=False), read_by(data, "none")
    known, before = _attribute(data, guard), _attribute(data, "none")
    something = True
    figures = [lost, *([] if read is None else [read._replace(paper=ssim)])]
    hides = read is not None and bare is not None and read.ours <= 0.6 * bare.ours
    said = f"Routing costs {lost.ours:.1f} points{'' if lost.ours <= 2 else ', more than two,'}" + (
        f" and leaves SSIM {read.ours:.2f} of {bare.ours:.2f}" if read is not None and bare is not None else ""
    )
    if known and before:
        figures.append(over_seeds("attribute inferred", known, adversary))
        fell = mean(before) - mean(known)
        guessed = _chance(data)
        something = mean(before) >= guessed + 0.1
        hides = hides and (fell >= 0.1 or not something)
        said += f"; an attribute reader falls from {mean(before):.2f} to {mean(known):.2f}, guessing is {guessed:.2f}"
    cheap = lost.ours <= 2
    # Where a reader of the open cut finds no more than a guess, nothing shows that the attribute was hidden.
    verdict = HOLDS if cheap and hides and something else PARTLY if cheap or hides else DOES_NOT
    return Finding(verdict, said + ".", tuple(figures))


def _before(data: Any) -> Finding:
    return _table(data, "Prism(keep=0.1, privacy='adversary')", 0.1, 0.963, 0.476)


_ATTACKS = "--attack 'Decoder(steps=1500, width=128)' --attack \"AttributeInference(attribute='{}')\""
_SMALL_ATTACKS = "--attack \"Decoder(steps=200, width=32, readers=('conv',))\" --attack \"AttributeInference(attribute='race', steps=200, readers=('conv',))\""
EXPERIMENTS = (
    Experiment(
        "prism-cifar10", PAPER, "PRISM keeps the accuracy of CIFAR-10 and blurs reconstructions.",
        "Table 3.2: accuracy 0.905 to 0.904, adversary 0.919 to 0.963 (it gains), SSIM 0.837 to 0.476",
        {"audit": f"audit recipes/prism.py:cifar10 --epochs 50 --aux-samples 10000 {_ATTACKS.format('living')} --images 512 --seeds 3 --no-alone --device cuda"},
        _judge((0.1, 0.963, 0.476)),
        earlier=(Earlier("cifar10-guards-b.json", _before),),
    ),
    Experiment(
        "prism-celeba", PAPER, "On faces PRISM keeps the task and hides the attribute.",
        "Table 3.2, CelebA: accuracy 0.930 to 0.924, adversary 0.954 to 0.609, SSIM 0.874 to 0.170",
        {"audit": f"audit recipes/faces.py:prism_celeba {_ATTACKS.format('Male')} --aux-samples 10000 --images 512 --seeds 3 --no-alone --device cuda"},
        _judge((0.6, 0.609, 0.170)),
    ),
    Experiment(
        "prism-faces", PAPER, "The same for gender beside race; UTKFace here.",
        "Table 3.2, FairFace: accuracy 0.916 to 0.894, adversary 0.419 to 0.212, SSIM 0.830 to 0.290",
        {"audit": f"audit recipes/faces.py:prism_utkface {_ATTACKS.format('race')} --aux-samples 5000 --images 512 --seeds 3 --no-alone --device cuda"},
        _judge((2.2, 0.212, 0.290)),
        # For two cores: a small network, as many steps as the annealing has, convolutional readers alone.
        {"audit": f"audit recipes/faces.py:prism_utkface --net LeNet --batch-size 32 --epochs 12 --aux-samples 800 {_SMALL_ATTACKS} --images 128 --no-alone"},
    ),
)  # fmt: skip
