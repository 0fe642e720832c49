"""What the split buys over clients alone: points of accuracy, against the share of the leak they cost."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .alone import ALONE, EQUAL_COST
from .grades import UNSURE
from .rows import AloneRow, Bought, Row, Verdict
from .strength import learnt
from .words import signed

SAME = 0.05  # points of accuracy that are printed as none


def over_seeds(alone: Sequence[AloneRow]) -> list[AloneRow]:
    """A row for each of the two baselines: accuracies are means over the seeds it could be trained with."""
    found: list[AloneRow] = []
    for name in dict.fromkeys(row["name"] for row in alone):
        own = [row for row in alone if row["name"] == name]
        if trained := [row for row in own if row["accuracy"] is not None]:
            accuracy, worst = (mean(row[key] for row in trained) for key in ("accuracy", "accuracy_worst"))  # type: ignore[literal-required]
            found.append({**trained[0], "accuracy": accuracy, "accuracy_worst": worst})
        else:
            found.append(own[0])
    return found


def mean_accuracy(alone: Sequence[AloneRow], name: str) -> float | None:
    """Over the seeds."""
    found = [row["accuracy"] for row in alone if row["name"] == name and row["accuracy"] is not None]
    return mean(found) if found else None


def _expected(rows: Sequence[Row] | Sequence[AloneRow]) -> float | None:
    """With several clients: the accuracy that each may expect on data like its own, mean over clients and seeds."""
    found = [told["mean"] for row in rows if (told := row.get("fairness"))]
    return mean(found) if found else None


def bought(rows: Sequence[Row], alone: Sequence[AloneRow], verdicts: Sequence[Verdict]) -> list[Bought]:
    """A line a guard: points of accuracy over a client alone, and the share of the leak they cost; most points first.

    Empty where no client alone was trained.
    """
    baseline, equal = (mean_accuracy(alone, name) for name in (ALONE, EQUAL_COST))
    by_itself = _expected([row for row in alone if row["name"] == ALONE])
    if baseline is None:
        return []
    found: list[Bought] = []
    for judged in verdicts:
        own = list({row["seed"]: row for row in rows if row["guard"] == judged.guard}.values())
        accuracy, expected = mean(row["accuracy"] for row in own), _expected(own)
        found.append(
            {
                "guard": judged.guard,
                "accuracy": accuracy,
                "points": 100 * (accuracy - baseline),
                "points_equal_cost": None if equal is None else 100 * (accuracy - equal),
                "points_own_data": None if expected is None or by_itself is None else 100 * (expected - by_itself),
                "leak": judged.leak,
                "grade": judged.grade,
            }
        )
    return sorted(found, key=lambda one: -one["points"])


def in_words(found: Sequence[Bought], alone: Sequence[AloneRow]) -> list[str]:
    """What the split buys, the unguarded one first, then with the guard that leaks least of those that were judged:
    what weak attackers found is a lower bound."""
    if not found:
        why = next((row["why_none"] for row in alone if row["name"] == ALONE), None)
        return [f"What a client could do alone is not known: {why}."] if why else []
    open_cut = next((one for one in found if one["guard"] == "none"), None)
    if open_cut is None:  # no attack on it was finished, so it has no row
        return []
    said = [compared("The split", open_cut["accuracy"], mean_accuracy(alone, ALONE), "a client alone")]
    first = over_seeds(alone)[0]
    if not learnt(first["accuracy"], first["accuracy_chance"]):
        said[0] = said[0].removesuffix(".") + f", which hardly learnt in its {first['steps']} steps."
        said.append("A client that trains longer may do far better alone: take more epochs before this is believed.")
    elif open_cut["points"] > SAME and first["steps"] != first["steps_of_all"]:
        said[0] = said[0].removesuffix(".") + _fewer_steps(first["steps"], first["steps_of_all"])
    if (own := open_cut["points_own_data"]) is not None:
        said.append(f"On data like a client's own it is {signed(own)} points.")
    sure = [one for one in found if one is not open_cut and one["grade"] not in UNSURE]
    known = [(one["leak"], one) for one in sure if one["leak"] is not None]
    if known:
        leak, least = min(known, key=lambda pair: (pair[0], -pair[1]["points"]))
        left = f"behind which {100 * leak:.0f} % of the leak is left"
        said.append(f"With {least['guard']}, {left}, it is {signed(least['points'])} points.")
    if (equal := mean_accuracy(alone, EQUAL_COST)) is not None:
        costliest = next(row["costliest"] for row in alone if row["name"] == EQUAL_COST)
        rival = next((one for one in found if one["guard"] == costliest), open_cut)
        whom = "a client alone that computes as much"
        said.append(compared(f"With {rival['guard']} it", rival["accuracy"], equal, whom))
    return said


def best_in_words(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """The same of a comparison: its best variant over a client alone with the same settings; None where there is no
    such pair."""
    split = [line for line in lines if line["over_alone"] is not None]
    if not split:
        return None
    best = max(split, key=lambda line: line["accuracy"])
    alone = next(line for line in lines if line["variant"] == best["alone"])
    whom = f"a {alone['variant']}" if alone["variant"].startswith(ALONE) else alone["variant"]
    said = compared(f"The best variant, {best['variant']},", best["accuracy"], alone["accuracy"], whom)
    if not learnt(alone["accuracy"], alone["accuracy_chance"]):
        return said.removesuffix(".") + ", which hardly learnt: take more epochs before this is believed."
    if best["over_alone"] > SAME and alone["client_steps"] != alone["steps"]:
        return said.removesuffix(".") + _fewer_steps(alone["client_steps"], alone["steps"])
    return said


def _fewer_steps(own: int | None, of_all: int | None) -> str:
    """In as many epochs a client with a share of the data takes a share of the steps: that alone costs accuracy."""
    return (
        f", which took {own} steps where all clients together took {of_all}: part of this is training time, and more "
        "epochs may make up for it."
    )


def compared(who: str, accuracy: float, other: float | None, whom: str) -> str:
    """Points of accuracy that one has over the other, in a sentence."""
    assert other is not None
    points, figures = 100 * (accuracy - other), f"({accuracy:.3f} against {other:.3f})"
    if abs(points) < SAME:
        return f"{who} buys no accuracy over {whom} {figures}."
    if points > 0:
        return f"{who} buys {points:.1f} points of accuracy over {whom} {figures}."
    return f"{who} buys nothing: it is {-points:.1f} points of accuracy below {whom} {figures}."
