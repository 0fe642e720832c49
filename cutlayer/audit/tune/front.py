"""From what was tried to an answer: the front, the choice, and what binds where nothing keeps to its budgets."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import hypot
from statistics import mean
from typing import Any

from ..leak import secret_of
from ..result import Audit
from ..rows import Row
from ..verdicts import verdict
from .budget import NAMES, Budget, option
from .neighbours import pooled
from .trial import NOISE, Tried, message_bytes

FIGURES = ("leak", "loss", "bytes")
LEAK_NOISE = 0.01  # shares that are nearer than this are the same


def front(tried: Sequence[Tried]) -> list[Tried]:
    """Of those that the full attack has read: no other leaks no more, loses no more and sends no more."""
    whole = [one for one in tried if one.whole and one.leak is not None]
    return [one for one in whole if not any(_beats(other, one) for other in whole)]


def _beats(other: Tried, one: Tried) -> bool:
    return _no_worse(other, one) and _figures(other) != _figures(one)


def _no_worse(other: Tried, one: Tried) -> bool:
    pairs = zip(_figures(other), _figures(one), strict=True)
    return all(theirs is not None and ours is not None and theirs <= ours for theirs, ours in pairs)


def _figures(one: Tried) -> list[float | None]:
    return [getattr(one, name) for name in FIGURES]


def meets(one: Tried, budget: Budget) -> bool:
    return one.whole and one.leak is not None and not budget.over(one._asdict())


def chosen(tried: Sequence[Tried], budget: Budget) -> list[Tried]:
    """Those that keep to every budget; the one that uses the least of it first (`Budget.used`)."""
    return _ranked([one for one in tried if meets(one, budget)], tried, budget)


def why_chosen(pick: Tried, tried: Sequence[Tried], budget: Budget) -> str:
    """By which rule, out of how many, and whether the next one is really behind it."""
    keeping = chosen(tried, budget)
    if pick not in keeping:
        return "those that the full attack has read in the search were refused by the last word"
    if len(keeping) < 2:
        return "no other that the full attack has read keeps to the budget in the search"
    said = f"of {len(keeping)} that keep to the budget in the search it has {budget.rule()}"
    after = next((one for one in keeping[keeping.index(pick) + 1 :]), None)
    if after is None:
        return f"{said}, but for those that the last word refused"
    apart = (budget.used(after._asdict()) or 0.0) - (budget.used(pick._asdict()) or 0.0)
    doubt = budget.used({"leak": 0.0, "loss": hypot(pick.doubt or 0.0, after.doubt or 0.0)}) or 0.0
    close = ", and other trainings could turn that round" if apart < doubt else ""
    if apart < 0:
        close = ", whose own figures are better, but not as settings beside it have it"
    return f"{said}; next is {after.guard}{close}"


def waiting(tried: Sequence[Tried], budget: Budget) -> list[Tried]:
    """Those that no cheap reader ruled out and the full attack has not read, the most promising first: those that
    none of them beats in leak, loss and bytes, and then the others."""
    waits = [one for one in tried if one.waits]
    first = [one for one in waits if not any(_beats(other, one) for other in waits)]
    rest = [one for one in waits if one not in first]
    return [one for those in (first, rest) for one in _promising(those, tried, budget)]


def leading(tried: Sequence[Tried], budget: Budget) -> list[Tried]:
    """Beside whom to look for a better one: those that nothing ruled out, the most promising first; where there are
    none, those that were trained, the nearest to the budget first."""
    left = [one for one in tried if one.why is None and (one.waits or one.whole)]
    trained = [one for one in tried if one.stage not in ("fit", "cost") and not one.failed]
    return _promising(left, tried, budget) or sorted(
        trained, key=lambda one: sum(budget.over(one._asdict()).values()) + one.ended_early
    )


def _promising(those: Sequence[Tried], tried: Sequence[Tried], budget: Budget) -> list[Tried]:
    """Of those that no single training tells from the first, the one that sends least comes first: fewer bytes are
    certain, and bound what any attacker reads."""
    if not (ranked := _ranked(those, tried, budget)):
        return []
    known = pooled(tried)
    alike = (budget.used({"leak": LEAK_NOISE, "loss": NOISE / 2}) or 0.0) + _key(known[ranked[0].guard], budget)[0]
    return sorted(
        ranked, key=lambda one: (one.bytes or 0.0) if _key(known[one.guard], budget)[0] <= alike else float("inf")
    )


def _ranked(those: Sequence[Tried], tried: Sequence[Tried], budget: Budget) -> list[Tried]:
    """By what they leak and lose as settings beside them have it."""
    known = pooled(tried)
    return sorted(those, key=lambda one: _key(known[one.guard], budget))


def _key(one: Tried, budget: Budget) -> tuple[float, float]:
    """Two decimals of a leak are told apart; of equals the better accuracy comes first."""
    found = {"leak": round(one.leak or 0.0, 2), "loss": one.loss}
    return budget.used(found) or 0.0, one.loss or 0.0


def beaten(one: Tried, tried: Sequence[Tried]) -> bool:
    """To cheap readers it leaks as much as another to the full attack, and it loses and sends no less: it can be on
    no front."""
    return any(other.whole and _no_worse(other, one) for other in tried)


def told(one: Tried) -> str:
    """A line: what was found of it, and why it went no further."""
    least = "" if one.whole else "at least "
    found = [
        "" if one.leak is None else f"{least}{one.leak:.2f} of the leak left",
        "" if one.loss is None else f"{'at least ' if one.ended_early else ''}{_points(one)}",
        "" if one.bytes is None else f"{one.bytes:,.1f} bytes",
    ]
    figures = ", ".join(figure for figure in found if figure)
    return f"{one.guard}: {'; '.join(part for part in (figures, one.why and f'out: {one.why}') if part)}"


def _points(one: Tried) -> str:
    assert one.loss is not None
    doubt = "" if one.doubt is None else f" ± {one.doubt:.1f}"
    return f"{abs(one.loss):.1f}{doubt} points {'lost' if one.loss >= 0 else 'gained'}"


@dataclass(frozen=True)
class Checked:
    """What a full audit under other seeds said of a guard. Means over the seeds, but of the leak the highest."""

    guard: str
    leak: float | None
    leak_interval: list[float] | None
    loss: float
    bytes: float
    client_macs: int
    ssim: float | None
    accuracy: float
    attack: str | None  # that decided
    grade: str
    missed: dict[str, float]  # by how much of a budget it is over
    searched_leak: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged(one: Tried, budget: Budget, result: Audit) -> Checked:
    own, unguarded = ([row for row in result.rows if row["guard"] == name] for name in (one.guard, "none"))
    said = verdict(result.rows, result.floors, one.guard, result.secrets)
    decided = max(said.secrets, key=lambda each: each.leak or 0.0, default=None)
    figures: dict[str, Any] = {
        "leak": said.leak,
        "loss": 100 * (_mean(unguarded, "accuracy") - _mean(own, "accuracy")),
        "bytes": mean(message_bytes(row) for row in own),
        "client_macs": own[0]["sides"]["client"]["macs"],
    }
    pictures = [row["value"] for row in own if row["valid"] and not row.get("ceiling") and secret_of(row) == "images"]
    return Checked(
        one.guard, **figures, leak_interval=decided.leak_interval if decided else None,
        ssim=max(pictures, default=None), accuracy=_mean(own, "accuracy"), attack=decided.attack if decided else None,
        grade=said.grade, missed=budget.over(figures), searched_leak=one.leak,
    )  # fmt: skip


def _mean(rows: Sequence[Row], name: str) -> float:
    """Over seeds: all rows of one tell of the same training."""
    return mean({row["seed"]: row[name] for row in rows}.values())  # type: ignore[literal-required]


def what_binds(tried: Sequence[Tried], budget: Budget) -> list[str]:
    """Where nothing keeps to all budgets: for each, the least it would have to be if the others stay."""
    known = [one for one in tried if one.stage != "fit"]
    said = []
    for name in (one for one in NAMES if one in budget.limits()):
        left = [one for one in known if set(budget.over(one._asdict())) == {name} and getattr(one, name) is not None]
        rest = _others(budget, name)
        if not left:
            continue
        best = min(left, key=lambda one: getattr(one, name))
        value = _shown(name, getattr(best, name))
        unknown = (name == "leak" and not best.whole) or (name == "loss" and best.ended_early)
        least = "at least " if unknown else ""
        said.append(f"{option(name)} binds: {rest} the least that was found is {least}{value} ({best.guard})")
    if said:
        return said
    missed = sorted(known, key=lambda one: max(budget.over(one._asdict()).values(), default=float("inf")))
    if not missed:
        return ["nothing that was tried fits this plan"]
    over = " and ".join(option(name) for name in budget.over(missed[0]._asdict()))
    return [
        f"{over or 'everything'} bind together: nothing misses one budget alone, and nearest is {missed[0].guard}"
    ]


def _others(budget: Budget, name: str) -> str:
    rest = [f"{option(one)} {limit:g}" for one, limit in budget.limits().items() if one != name]
    return f"with {' and '.join(rest)}" if rest else "of all that was tried"


def _shown(name: str, value: float) -> str:
    return {"leak": f"{value:.2f}", "loss": f"{value:.1f} points", "bytes": f"{value:,.1f}"}.get(name, f"{value:,}")
