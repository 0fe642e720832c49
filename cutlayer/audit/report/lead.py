"""What a report begins with: what the strongest attacker reads without a guard and behind the best one."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..grades import OPEN, TASK_LOST, UNKNOWN, UNSURE, at_best, grade_of, worse
from ..kinds import KINDS
from ..rows import SecretVerdict, Verdict
from ..verdicts import decisive
from ..words import at_least, listed, percents

NAMED = 2  # attackers; of a whole budget of them nobody reads more
UNREAD = "No attack on the open cut was finished, so there is nothing to set a guard beside."
_ONE_OR_MORE = {
    "hides": ("hides", "hide"),
    "blunts": ("blunts the attacks", "blunt the attacks"),
    "weakens": ("weakens the attacks", "weaken the attacks"),
    "does not protect": ("does not protect", "do not protect"),
    UNKNOWN: ("could not be judged", "could not be judged"),
    TASK_LOST: ("has lost the task", "have lost the task"),
}


def lead(verdicts: Sequence[Verdict], accuracies: Mapping[str, float], secrets: Sequence[str]) -> list[str]:
    """Sentences: on the open cut, on the best guard or the only one, how the guards fared, and what it rests on.

    `secrets` are those that the verdicts go by; none: all that were tried.
    """
    open_cut = next((one for one in verdicts if one.guard == "none"), None)
    guards = [one for one in verdicts if one is not open_cut]
    leaks = [] if open_cut is None else [one for one in _asked(open_cut, secrets) if one.grade == OPEN]
    said = [_of_open_cut(leaks) if leaks else UNREAD if open_cut is None else open_cut.sentence]
    best = _best(guards, accuracies) if leaks or open_cut is None else None
    if best is not None:
        said.append(_of_guard(best, _asked(best, secrets), guards))
    if len(guards) > 1:
        said.append(_count(guards))
    shown = best or open_cut or guards[0]
    return [*said, _rests(_asked(shown, secrets), shown)]


def _asked(judged: Verdict, secrets: Sequence[str]) -> list[SecretVerdict]:
    return [one for one in judged.secrets if not secrets or one.secret in secrets]


def _best(guards: Sequence[Verdict], accuracies: Mapping[str, float]) -> Verdict | None:
    """The least leak among those that could be judged, the same one of which what the split buys is told. An only
    guard is shown whatever is known of it."""
    if len(guards) == 1:
        return guards[0]
    known = [
        (one.leak, -accuracies.get(one.guard, 0.0), place)
        for place, one in enumerate(guards)
        if one.leak is not None and one.grade not in UNSURE
    ]
    return guards[min(known)[-1]] if known else None


def _of_open_cut(leaks: Sequence[SecretVerdict]) -> str:
    read = [f"{_reads(one)}, where {_perfect(one)}" for one in leaks]
    return f"Without a guard the strongest attacker {'; and '.join(read)}."


def _perfect(one: SecretVerdict) -> str:
    if one.secret in KINDS:
        return f"1 would be a perfect copy and a blind guess reaches {one.floor:.2f}"
    return f"chance is {one.floor:.2f}"


def _of_guard(judged: Verdict, asked: Sequence[SecretVerdict], guards: Sequence[Verdict]) -> str:
    one = decisive(asked) if asked else None
    if one is None or one.leak is None or judged.grade == TASK_LOST:
        return f"Behind {judged.guard}: {judged.sentence}"
    blind = "a blind guess" if one.secret in KINDS else "chance"
    least = "at least " if judged.grade == UNKNOWN or at_least(one) else ""
    within = "" if one.leak_interval is None else f" ({percents(one.leak_interval)})"
    return (
        f"Behind {judged.guard}{_among(judged, guards)} the strongest attacker {_reads(one)}; "
        f"unguarded {one.control:.2f}, {blind} {one.floor:.2f}. So {least}{100 * one.leak:.0f} % of the leak is "
        f"left{within}.{_recognised(one)} Verdict: {judged.graded}."
    )


def _among(judged: Verdict, guards: Sequence[Verdict]) -> str:
    """How it stands among several guards. Where percents are the same, none is the one that leaks least."""
    if len(guards) == 1:
        return ""
    percent = [round(100 * one.leak) for one in guards if one.leak is not None and one.grade not in UNSURE]
    alike = judged.leak is not None and percent.count(round(100 * judged.leak)) > 1
    count = f"{len(percent)} guard{'' if len(percent) == 1 else 's'}"
    judged_only = "" if len(percent) == len(guards) else " that could be judged"
    return f", which leaks {'no more than any other' if alike else 'least'} of the {count}{judged_only},"


def _recognised(one: SecretVerdict) -> str:
    """Where the grade is not that of the share of the leak, because bad pictures tell which image they are of."""
    if one.identified is None or one.identified_leak is None or one.leak is None:
        return ""
    grade = grade_of(one.leak)
    if worse(grade, at_best(one.identified_leak)) == grade:
        return ""
    return f" But {100 * one.identified:.0f} % of its pictures still tell which private image they are of."


def _reads(one: SecretVerdict) -> str:
    """What was read, in words, and the figure with its interval."""
    within = "" if one.interval is None else f" ({one.interval[0]:.2f} to {one.interval[1]:.2f})"
    figure = f"{one.reached:.2f}{within}"
    kind = KINDS.get(one.secret)
    if kind is None:
        what = f"the attribute {one.target}" if one.secret == "attribute" else f"the {one.secret}"
        return f"reads {what} at {'AUC' if one.secret == 'membership' else 'accuracy'} {figure}"
    if one.statistic == "names":
        return f"reads names and numbers of the private {kind.secret} at a share of {figure}"
    if one.statistic == "column":
        return f"reads the column {one.column!r} of the private {kind.secret} at {kind.said} {figure}"
    tenth = "best-read tenth of the " if one.statistic == "p90" else ""
    return f"rebuilds the {tenth}private {kind.secret} at {kind.said} {figure}"


def _count(guards: Sequence[Verdict]) -> str:
    """How many came off how, from good to bad; the worse grade of those that span two."""
    counts = Counter(one.grade for one in guards)
    fared = [f"{counts[grade]} {told[counts[grade] > 1]}" for grade, told in _ONE_OR_MORE.items() if counts[grade]]
    return f"Of the {len(guards)} guards, {listed(fared)}."


def _rests(asked: Sequence[SecretVerdict], judged: Verdict) -> str:
    """The attackers whose low scores mean something, what nobody tried, and that another attack may do better."""
    names = list(dict.fromkeys(name for one in asked for name in one.rests_on))
    if len(names) > NAMED + 1:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    said = f"This rests on {listed(names)}" if names else "No attacker with a working control stands behind this"
    untried = judged.untried
    missing = f"{listed(untried)} {'was' if len(untried) == 1 else 'were'} not tried, and " if untried else ""
    return f"{said}; {missing}an attack that is not here may do better."
