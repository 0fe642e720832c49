"""Gate, a guard of our own: judged by the same page as the papers'."""

from collections.abc import Mapping
from typing import Any

from .base import DOES_NOT, HOLDS, PARTLY, Data, Earlier, Experiment, Figure, Finding, over_seeds

PAPER = "Gate (this project)"
OPEN, ONCE, ALONE = "open", "32x2 once compressed", "alone"
ABOVE_CLASS, ABOVE_CLASS_LINKED, MOST_LOST, LEAST_GAIN = 0.03, 0.06, 2.0, 8.0  # SSIM, SSIM, points, points


def _recorded(data: Any) -> Finding:
    """Every row has its seed, accuracy, the floors and what `Decoder` and `Linked` read."""
    rows = {(row["name"], row["seed"]): row for row in data["rows"]}
    seeds = [seed for name, seed in rows if name == ONCE and (OPEN, seed) in rows and (ALONE, seed) in rows]
    ours, bare, alone = ([rows[name, seed] for seed in seeds] for name in (ONCE, OPEN, ALONE))
    floor = [row["floors"]["class_mean"]["ssim"] for row in ours]

    def above(attack: str) -> list[float]:
        return [row[attack]["ssim"] - least for row, least in zip(ours, floor, strict=True)]

    def ahead(of: list[dict[str, Any]], by: list[dict[str, Any]]) -> list[float]:
        return [100 * (one["accuracy"] - other["accuracy"]) for one, other in zip(of, by, strict=True)]

    one = over_seeds("SSIM above the class mean, one message", above("Decoder"), ABOVE_CLASS)
    linked = over_seeds("all messages linked", above("Linked"), ABOVE_CLASS_LINKED)
    lost = over_seeds("points lost", ahead(bare, ours), MOST_LOST, points=True)
    gained = over_seeds("points over a client alone", ahead(ours, alone), LEAST_GAIN, points=True)
    added = [100 * (row["accuracy"] - row["accuracy_at_home"]) for row in ours]
    at_home = over_seeds("points the server adds to the client's own classifier", added, points=True)
    hides = one.ours <= ABOVE_CLASS and linked.ours <= ABOVE_CLASS_LINKED
    pays = lost.ours <= MOST_LOST and gained.ours >= LEAST_GAIN
    said = (
        f"{len(seeds)} seeds: readers stay {one.ours:.3f} above the class mean, {linked.ours:.3f} over a whole training, "
        f"for {lost.ours:.1f} points on average; but the server {'adds' if at_home.ours > 0 else 'takes'} "
        f"{abs(at_home.ours):.1f} points {'to' if at_home.ours > 0 else 'from'} what clients reach with the head they share."
    )
    return Finding(
        HOLDS if hides and pays else PARTLY if hides else DOES_NOT, said, (one, linked, lost, gained, at_home)
    )


def _audited(results: Mapping[str, Data]) -> Finding:
    """One seed without a record of linked messages: what one message tells, and what is learnt."""
    audit = results["audit"]
    rows = [row for row in audit["rows"] if row["guard"] != "none"]
    best = max(rows, key=lambda row: row["ssim"])
    floor = audit["floors"]["class_mean"]["ssim"]
    bare = next(row for row in audit["rows"] if row["guard"] == "none")
    one = Figure("SSIM above the class mean, one message", best["ssim"] - floor, paper=ABOVE_CLASS)
    lost = Figure("points lost", 100 * (bare["accuracy"] - best["accuracy"]), paper=MOST_LOST, points=True)
    hides, pays = one.ours <= ABOVE_CLASS, lost.ours <= MOST_LOST
    said = f"One message leaves {best['ssim']:.2f}, the class mean {floor:.2f}, for {lost.ours:.1f} points; nothing was linked."
    return Finding(HOLDS if hides and pays else PARTLY if hides else DOES_NOT, said, (one, lost))


EXPERIMENTS = (
    Experiment(
        "gate-once", PAPER,
        "A code of 64 bits, learnt at home and sent once, hides the pictures of CIFAR-10 for a whole training and costs at most two points.",
        "goal: class mean + 0.03 for one message and + 0.06 linked; 2 points; 8 over a client alone",
        {"audit": "audit recipes/gate.py:cifar10_once --attack 'Decoder(steps=1500, hidden=2048)' --aux-samples 10000 --images 400 --no-alone --device cuda"},
        _audited,
        {"audit": "audit recipes/gate.py:digits_once --attack 'Decoder(steps=150)' --images 64 --no-alone"},
        (Earlier("gate.json", _recorded),),
        whose="goal",
    ),
)  # fmt: skip
