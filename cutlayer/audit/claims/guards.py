"""All guards against all attackers: whether any of them hides what it should at a price that papers promise."""

from collections.abc import Mapping

from .base import DOES_NOT, HOLDS, PARTLY, Data, Earlier, Experiment, Figure, Finding, guard_accuracy

PAPER = "All of them"
MOST_LEFT, MOST_LOST = 0.10, 2.0  # share of the leak, points


def _judge(data: Data) -> Finding:
    """By the verdicts of the audit: the strongest attacker that counts, the worst statistic."""
    bare = guard_accuracy(data, "none")
    found = []
    for one in data["verdicts"]:
        if one["guard"] != "none" and one["leak"] is not None:
            lost = [before - after for before, after in zip(bare, guard_accuracy(data, one["guard"]), strict=True)]
            found.append((one["guard"], one["leak"], sum(lost) / len(lost)))
    good = [one for one in found if one[1] <= MOST_LEFT and one[2] <= MOST_LOST]
    fair = [one for one in found if one[1] <= 0.35 and one[2] <= MOST_LOST]
    cheap = [one for one in found if one[2] <= MOST_LOST]
    best = min(cheap or found, key=lambda one: one[1])
    figures = (
        Figure(f"leak left, {best[0]}", best[1], paper=MOST_LEFT),
        Figure(f"points lost, {best[0]}", best[2], paper=MOST_LOST, points=True),
    )
    said = (
        f"Of {len(found)} guards {len(good)} do, by the worst of pictures and labels; the least leak within {MOST_LOST:g} points "
        f"is left by {best[0]}: {best[1]:.2f}."
    )
    return Finding(HOLDS if good else PARTLY if fair else DOES_NOT, said, figures)


def _audited(results: Mapping[str, Data]) -> Finding:
    return _judge(results["audit"])


EXPERIMENTS = (
    Experiment(
        "all-guards", PAPER,
        "Some guard leaves at most a tenth of the leak to the strongest attacker and costs at most two points.",
        "what their abstracts promise together",
        {"audit": "audit recipes/fashion.py:demo --guard all --budget standard --images 128 --no-alone --device cuda"},
        _audited,
        {"audit": "audit recipes/fashion.py:demo --epochs 4 --guard all --attack 'Decoder(steps=100)' --attack 'FORA(steps=150, reader_steps=150)' --attack \"Linked(link='neighbours', epochs=3, steps=100)\" --images 64 --no-alone"},
        medium={"audit": "audit recipes/fashion.py:demo --epochs 5 --guard all --budget quick --images 128 --no-alone"},
        earlier=(Earlier("attacks-quick.json", _judge),),
        whose="promised",
    ),
)  # fmt: skip
