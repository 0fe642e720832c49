"""What the figures of an audit mean, in words: pure functions from rows to verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from ..attacks import Attack
from ..core.batch import Task
from .control import found_something
from .grades import (
    BY_BADNESS,
    GOOD,
    GRADES,
    LEAST_LEAK,
    OPEN,
    TASK_LOST,
    UNKNOWN,
    WIDE_GAP,
    at_best,
    both,
    grade_of,
    worse,
)
from .kinds import KINDS, of_floors, rebuilt
from .leak import found_by, recognised_by, secret_of
from .rows import Floors, Row, SecretVerdict, Verdict
from .strength import below_default, doubts, epsilon_holds, hardly_learnt, hollow, lost, rests_on
from .words import (
    begun,
    cost,
    hardly_leaks,
    in_short,
    in_words,
    listed,
    names_class,
    opened,
    percents,
    recognised,
    secret_name,
)

SECRETS = (*KINDS, "labels", "attribute", "membership")


def read_secrets(text: str | None) -> tuple[str, ...]:
    """Secrets as they are typed, with commas between; none: all that were tried."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"--secrets names what the verdict goes by, among {', '.join(SECRETS)}; got {text!r}")
    if strange := [name for name in names if name not in SECRETS]:
        raise ValueError(f"secrets are among {', '.join(SECRETS)}; got {strange[0]!r}")
    return names


def refuse_secrets(names: Sequence[str], task: Task, attacks: Sequence[Attack]) -> None:
    """Inputs of another kind than these, and what no attack is after, cannot be among what the verdicts go by."""
    if strange := [name for name in names if name in KINDS and name != task.kind]:
        raise ValueError(f"the inputs here are {task.kind}, there are no {strange[0]}: --secrets {task.kind}")
    after = {task.kind if one.secret == "images" else one.secret for one in attacks}
    if untried := [name for name in names if name not in after]:
        raise ValueError(
            f"no attack here is after {untried[0]}, so no verdict could go by it: name one with --attack "
            f"(cutlayer list attacks), or leave {untried[0]} out of --secrets"
        )


# ------------------------------------------------------------------ rows
def guards_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["guard"] for row in rows))


def counted(rows: Sequence[Row], guard: str, secret: str, target: str = "") -> list[Row]:
    """The rows that count for a guard. An attacker that was told a secret is a limit and no threat: it counts only
    where there is no other."""
    valid = [row for row in _of(rows, guard, secret, target) if row["valid"]]
    return [row for row in valid if not row.get("ceiling")] or valid


def _of(rows: Sequence[Row], guard: str, secret: str, target: str) -> list[Row]:
    wanted = (guard, secret, target)
    return [row for row in rows if (row["guard"], secret_of(row), row.get("target", "")) == wanted]


def strongest(rows: Sequence[Row], guard: str) -> Row | None:
    """The best reconstruction that counts for a guard, over all attacks and seeds."""
    known = (row for secret in KINDS for row in counted(rows, guard, secret))
    return max(known, key=lambda row: row["value"], default=None)


def ceiling(rows: Sequence[Row], guard: str) -> Row | None:
    """The best of those attackers that were told a secret, if there are any."""
    own = [row for secret in KINDS for row in _of(rows, guard, secret, "")]
    told = [row for row in own if row["valid"] and row.get("ceiling")]
    return max(told, key=lambda row: row["value"], default=None)


def total_bytes(row: Row) -> float:
    """Bytes a training sample costs: all messages of its step, both ways, and its share of what goes now and then.

    These are relayed weights, and the decoders that some guards exchange.
    """
    return row["bytes_up"] + row["bytes_down"] + row["bytes_weights"] + row.get("rates", {}).get("amortised", 0.0)


def over_seeds(rows: Sequence[Row], figure: Callable[[Row], float]) -> float:
    """The mean of what a guard costs: all rows of a seed tell of the same training."""
    return mean({row.get("seed", 0): figure(row) for row in rows}.values())


class Forms(NamedTuple):
    """One attack on one guard, by what it knew of the guard: the best SSIM of each form."""

    guard: str
    attack: str
    ssim: dict[str, float]

    @property
    def gain(self) -> float:
        """What knowing the guard was worth."""
        return max(self.ssim.values()) - self.ssim["oblivious"]

    @property
    def sentence(self) -> str:
        return (
            f"{self.attack} that knows the guard reaches {max(self.ssim.values()):.2f}, the same attack without that "
            f"knowledge {self.ssim['oblivious']:.2f}: a result against the latter alone says nothing about privacy."
        )


def by_form(rows: Sequence[Row], guard: str) -> list[Forms]:
    """The attacks that met this guard both with and without knowing it, those first that gained most.

    Only those that passed their control; what then fails against the guard is what not knowing it comes to.
    """
    found: dict[str, dict[str, float]] = {}
    pictured = [row for row in rows if row["guard"] == guard and row.get("form") and rebuilt(row)]
    for row in pictured:
        if row["why_control_failed"] is None and not row["ceiling"]:
            best = found.setdefault(row["plain"], {})
            best[row["form"]] = max(row["value"], best.get(row["form"], -1.0))
    both_ways = [Forms(guard, plain.partition("(")[0], ssim) for plain, ssim in found.items() if "oblivious" in ssim]
    return sorted((forms for forms in both_ways if len(forms.ssim) > 1), key=lambda forms: -forms.gain)


# ------------------------------------------------------------------ one secret
def _judged(rows: Sequence[Row], floors: Floors, guard: str, secret: str, target: str) -> SecretVerdict:
    own, unguarded = counted(rows, guard, secret, target), counted(rows, "none", secret, target)
    tried, open_tried = _of(rows, guard, secret, target), _of(rows, "none", secret, target)
    if not own:
        reasons = sorted({row["why_invalid"] for row in tried if row["why_invalid"]})
        sentence = f"No valid attack, so nothing can be said: {'; '.join(reasons) or 'none was tried'}."
        return SecretVerdict(secret, target, UNKNOWN, UNKNOWN, sentence)
    found = found_by(own, unguarded or open_tried, floors)
    decided = max(found, key=lambda one: (one.leak, one.statistic == "value", one.reached))
    by_seed: dict[int, float] = {}
    for one in found:
        seed = one.row.get("seed", 0)
        by_seed[seed] = max(one.leak, by_seed.get(seed, 0.0))
    row, told = decided.row, recognised_by(own, unguarded or open_tried, floors) if secret == "images" else None
    whole = SecretVerdict(
        secret, target, UNKNOWN, UNKNOWN, "",
        attack=row.get("attack"), seed=row.get("seed"), statistic=decided.statistic, reached=decided.reached,
        interval=decided.interval, column=decided.column and decided.column["name"], control=decided.open_cut,
        floor=decided.floor,
        by_seed=[list(pair) for pair in by_seed.items()], above_half=row.get("above_half"),
        worst=row.get("worst", []), rests_on=rests_on(own),
    )  # fmt: skip
    if told is not None:
        whole = replace(
            whole, identified=told.reached, identified_by=told.row["attack"], identified_leak=told.leak,
            identified_floor=told.floor,
        )  # fmt: skip
    leaks_too_little = max(max(one.open_cut, one.reached) - one.floor for one in found) < LEAST_LEAK
    if leaks_too_little or not any(_surely_found(one, floors) for one in [*own, *unguarded]):
        return replace(whole, sentence=hardly_leaks(decided, secret))
    if guard == "none":
        return replace(whole, grade=OPEN, graded=OPEN, leak=1.0, leak_interval=[1.0, 1.0], sentence=opened(decided))
    ends = [known for one in found if (known := one.leak_interval) is not None]
    within = [max(one[end] for one in ends) for end in (0, 1)] if ends else None
    low, high = within or [decided.leak, decided.leak]
    why = doubts(tried, open_tried, floors)
    # Of little that was found, perhaps by chance, an interval over all grades says nothing.
    best, bad = GRADES[0][1], GRADES[-1][1]
    spans_all = grade_of(low) == best and grade_of(high) == bad != grade_of(decided.leak)
    if spans_all:
        why = ["what is left may be anything from nothing to all of the leak", *why]
    ends_told = (0.0, 0.0) if told is None else told.leak_interval or (told.leak, told.leak)
    better, worst = (
        _allowed(worse(grade_of(leak), at_best(share)), why)
        for leak, share in zip((min(low, decided.leak), max(high, decided.leak)), ends_told, strict=True)
    )
    grade, graded = (UNKNOWN, UNKNOWN) if spans_all else (worse(better, worst), both(better, worst))
    whole = replace(
        whole, grade=grade, graded=graded, leak=decided.leak, leak_interval=within,
        doubts=why,
    )  # fmt: skip
    still = recognised(told) if told is not None and at_best(told.leak) != best else ""
    shown = "" if grade == bad else names_class(own)  # who sees the picture sees its class
    return replace(whole, sentence=in_words(whole, decided, found, own) + still + shown)


def _surely_found(row: Row, floors: Floors) -> bool:
    return "interval" not in row or found_something(row, floors)


def _allowed(grade: str, doubts: Sequence[str]) -> str:
    return UNKNOWN if doubts and grade in GOOD else grade


# ------------------------------------------------------------------ one guard
def verdict(rows: Sequence[Row], floors: Floors, guard: str, secrets: Sequence[str] = ()) -> Verdict:
    """The worst of what was found out behind a guard. `secrets` are those that count; none: all that were tried."""
    there = dict.fromkeys((secret_of(row), row.get("target", "")) for row in rows)
    tried = [(secret, target) for name in SECRETS for secret, target in there if secret == name]
    judged = [_judged(rows, floors, guard, *one) for one in tried]
    asked = [one for one in judged if not secrets or one.secret in secrets]
    others = KINDS.keys() - {of_floors(floors).secret}  # an audit is of one kind of input
    missing = [name for name in SECRETS if name not in {one.secret for one in judged} | others]
    open_rows, own = [row for row in rows if row["guard"] == "none"], [row for row in rows if row["guard"] == guard]
    notes, flags = _notes(rows, guard, judged, missing), _flags(own, open_rows, floors, judged)
    grade, graded, leak, sentence = _worst(asked, [name for name in secrets if name in missing], guard)
    if guard != "none" and own and open_rows:
        accuracy, before = (over_seeds(some, lambda row: row["accuracy"]) for some in (own, open_rows))
        if why := lost(accuracy, before, open_rows[0].get("accuracy_chance")):
            left = "" if leak is None else f" That {100 * leak:.0f} % of the leak is left says little then."
            sentence = f"The task is lost: {why}.{left}"
            grade = graded = TASK_LOST
        else:
            points = 100 * (accuracy - before)
            sentence += f" {cost(points, over_seeds(open_rows, total_bytes) / over_seeds(own, total_bytes))}"
    return Verdict(guard, grade, graded, leak, sentence, judged, missing, notes, flags)


def _worst(asked: Sequence[SecretVerdict], untried: Sequence[str], guard: str) -> tuple[str, str, float | None, str]:
    """(grade, as it is printed, leak, sentence): those of the secret that came off worst."""
    if guard == "none" and (leaks := [one for one in asked if one.grade == OPEN]):
        return OPEN, OPEN, 1.0, " ".join(one.sentence for one in leaks)
    if not asked:
        return UNKNOWN, UNKNOWN, None, f"Nothing can be said: {listed(untried) or 'nothing'} was not tried."
    worst = decisive(asked)
    rest = [one for one in asked if one is not worst]
    said = worst.sentence + "".join(f" {secret_name(one).capitalize()}: {in_short(one)}." for one in rest)
    if untried and worst.grade in GOOD:
        return UNKNOWN, UNKNOWN, worst.leak, f"Nothing was tried on {listed(untried)}, and it was asked for. {said}"
    return worst.grade, worst.graded, worst.leak, said


def decisive(asked: Sequence[SecretVerdict]) -> SecretVerdict:
    """The secret that came off worst behind a guard: its verdict is the guard's."""
    return max(asked, key=lambda one: (BY_BADNESS.index(one.grade), one.leak or 0.0))


def _notes(rows: Sequence[Row], guard: str, judged: Sequence[SecretVerdict], missing: Sequence[str]) -> list[str]:
    found = []
    for one in judged:
        if one.rests_on and guard != "none":
            found.append(f"{secret_name(one).capitalize()}: rests on {', '.join(one.rests_on)}.")
        if len(one.by_seed) > 1 and guard != "none":
            spread = percents([pick(share for _, share in one.by_seed) for pick in (min, max)])
            found.append(f"{secret_name(one).capitalize()}: over {len(one.by_seed)} seeds {spread} left.")
    if guard != "none" and epsilon_holds([row for row in rows if row["guard"] == guard]):
        found.append("The ledger's ε is no larger than what was asked for.")
    both_read = [row for row in rows if row["guard"] == guard and "read_in" in row]
    if both_read:
        more = sum(row["read_in"]["service"] > row["read_in"]["training"] for row in both_read)
        found.append(
            "The guard rests in service: attackers read what it sends in training and what it sends in service, and "
            f"the better reading counts ({more} of {len(both_read)} read better in service)."
        )
    if missing:
        travels = "labels" in missing and any(row.get("labels_travel") for row in rows)
        found.append(
            f"Not tried: {listed(missing)}." + (" Labels travel to the server as they are here." if travels else "")
        )
    told, real = ceiling(rows, guard), strongest(rows, guard)
    if told is not None and told is not real:
        what = "which sample every row stands for, in every epoch," if told.get("linked_by") else "the key"
        found.append(f"Who knew {what} would reach {told['value']:.2f}.")
    return found + [forms.sentence for forms in by_form(rows, guard)[:1] if forms.gain >= WIDE_GAP]


def _flags(
    own: Sequence[Row], open_rows: Sequence[Row], floors: Floors, judged: Sequence[SecretVerdict]
) -> list[str]:
    """What makes this guard's rows prove less than they seem to, whatever the grade."""
    found = hollow([row for row in own if "secret" in row], open_rows, floors)
    found += _weaker(own, judged)
    broken = {row["attack"]: row for row in own if row.get("broken")}
    found += [f"{name} returned NaN or infinity for {row['broken']} samples" for name, row in broken.items()]
    return [begun(one) for one in dict.fromkeys(found)]


def _weaker(own: Sequence[Row], judged: Sequence[SecretVerdict]) -> list[str]:
    """Attackers below their default strength, where a stronger one could have found more: a weak one that found all
    there is to find has proved it."""
    found_out = {(one.secret, one.target) for one in judged if one.grade in (OPEN, GRADES[-1][1])}
    weak = [row for row in own if row.get("below_default")]
    weak = [row for row in weak if (secret_of(row), row.get("target", "")) not in found_out]
    return [below_default(row) for row in {row["plain"]: row for row in weak}.values()]


def flags(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> list[str]:
    """What makes the whole audit prove less than it seems to."""
    found = [why for row in rows if row["guard"] == "none" and (why := hardly_learnt(row))][:1]
    for judged in verdicts:
        found += _weaker([row for row in rows if row["guard"] == judged.guard], judged.secrets)
    return [begun(one) for one in dict.fromkeys(found)]
