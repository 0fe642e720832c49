"""The sentences of a verdict."""

from collections.abc import Sequence
from math import sqrt

from .grades import GRADES, UNKNOWN
from .kinds import KINDS, TEXTS, Kind, rebuilt
from .leak import MOST, Found, secret_of
from .rows import Row, SecretVerdict

OF_TEXTS = {"mean": "commonest words", "class_mean": "commonest words of its class", "prior": "likeliest text"}


def floor_name(name: str, kind: Kind) -> str:
    """A floor, as a table names it."""
    no_floors = {"unaligned": "unaligned decoder", "nearest": f"nearest auxiliary {kind.one}"}
    told = OF_TEXTS.get(name, name) if kind is TEXTS else name
    return no_floors.get(name, f"floor: {told.replace('_', ' ')}")


def begun(said: str) -> str:
    """A sentence as it stands in a text. One that begins with a file's name leaves that as it was typed."""
    begins_with_a_file = ":" in said.partition(" ")[0].partition("(")[0]
    return f"{said if begins_with_a_file else said[0].upper() + said[1:]}."


def secret_name(one: SecretVerdict) -> str:
    return f"{one.secret} {one.target}".strip()


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def in_short(one: SecretVerdict) -> str:
    return one.graded if one.leak is None else f"{one.graded}, {100 * one.leak:.0f} % left"


def at_least(one: SecretVerdict) -> bool:
    """Whether the share that is left is a lower bound: the attackers may be too weak."""
    return bool(one.doubts) and one.grade != GRADES[-1][1]


def percents(ends: Sequence[float]) -> str:
    """Two shares of a leak, from the lower to the higher."""
    low, high = (f"{100 * end:.0f}" for end in ends)
    return f"{low} to {f'over {high}' if ends[1] >= MOST else high} %"


def cost(points: float, ratio: float) -> str:
    """What a guard costs: points of accuracy, and how many times the bytes of the open cut are those it needs."""
    told = "as before" if abs(points) < 0.05 else f"{signed(points)} points"
    return f"Accuracy {told}, {bytes_compared(ratio)}."


def signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def bytes_compared(ratio: float) -> str:
    """How many times fewer, or more, bytes travel."""
    return f"{bytes_fewer(ratio) or 'as many'} bytes over everything that travels"


def bytes_fewer(ratio: float) -> str:
    """`2.4x fewer`, or more; empty: as many."""
    fewer, more = f"{ratio:.1f}", f"{1 / ratio:.1f}"
    if fewer == more == "1.0":
        return ""
    return f"{fewer}x fewer" if ratio > 1 else f"{more}x more"


def reached_by(one: Found) -> str:
    """What was reached, with its interval."""
    ends = one.interval
    within = "" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    return f"{one.reached:.2f}{within}"


def opened(one: Found) -> str:
    if (kind := rebuilt(one.row)) is not None:
        return (
            f"Without a guard the server rebuilds private {kind.secret} at {kind.said} {one.row['value']:.2f} "
            f"(a blind guess reaches {one.floor:.2f})."
        )
    return f"It reads {_of_secret(one.row)} at {_metric(one.row)} {reached_by(one)} (chance {one.floor:.2f})."


def _metric(row: Row) -> str:
    return row["metric"].upper() if row["metric"] in ("ssim", "auc") else row["metric"].replace("_", " ")


def _of_secret(row: Row) -> str:
    return row["target"] if secret_of(row) == "attribute" else secret_of(row)


def hardly_leaks(one: Found, secret: str) -> str:
    """Neither the guarded nor the open cut is surely read better than by guessing."""
    if (kind := KINDS.get(secret)) is None:
        return (
            f"Even unguarded {_of_secret(one.row)} is read at {one.open_cut:.2f} only, not surely above chance "
            f"({one.floor:.2f}): this cut leaks too little for these attackers to compare guards with."
        )
    return (
        f"Even unguarded the {kind.secret} come back at {kind.said} {one.open_cut:.2f} only, hardly above a blind "
        f"guess ({one.floor:.2f}): this cut leaks too little for this attacker to compare guards with."
    )


def recognised(told: Found) -> str:
    """Pictures that are bad and still tell which image they are of: a sentence to follow those on SSIM."""
    reached, unguarded, blind = (f"{100 * share:.0f} %" for share in (told.reached, told.open_cut, told.floor))
    return (
        f" Of its pictures {reached} still tell which private image they are of; unguarded {unguarded}, a blind "
        f"guess {blind}."
    )


def names_class(rows: Sequence[Row]) -> str:
    """Pictures that are bad and still tell the class: a sentence to follow those on SSIM. Empty: none surely does."""
    seen = [row for row in rows if _surely_named(row)]
    if not seen:
        return ""
    row = max(seen, key=lambda row: row["class_named"])
    named, originals, chance = (
        f"{100 * row[key]:.0f} %" for key in ("class_named", "class_originals", "class_chance")
    )
    return (
        f" The class is in them: a classifier names it right for {named} of its pictures; for {originals} of the "
        f"originals, by always naming the commonest {chance}."
    )


def _surely_named(row: Row) -> bool:
    """More often than the commonest class is right, by two deviations."""
    if row.get("class_named") is None:
        return False
    chance = row["class_chance"]
    return row["class_named"] > chance + 2 * sqrt(chance * (1 - chance) / row["n"])


def in_words(judged: SecretVerdict, decided: Found, found: Sequence[Found], own: Sequence[Row]) -> str:
    """The verdict on one secret: what was reached, beside the open cut and a blind guess."""
    assert judged.leak is not None
    what, grade = _of_secret(decided.row), judged.grade
    opening = {
        "hides": f"Hides the {what} from the attackers that were tried.",
        "blunts": f"Blunts the attacks on {what}.",
        "weakens": f"Weakens the attacks on {what}, no more.",
        "does not protect": f"Does not protect {what}.",
        UNKNOWN: f"Too little is known about {what}: {'; '.join(judged.doubts)}.",
    }[grade]
    kind = rebuilt(decided.row)
    figure, without = _metric(decided.row), "chance" if kind is None else "a blind guess"
    best = max((one for one in found if one.statistic == "value"), key=lambda one: one.leak)
    said = (
        f"The best attack reaches {figure} {reached_by(best)}; unguarded it is {best.open_cut:.2f}, {without} "
        f"{best.floor:.2f}."
    )
    if decided.statistic == "p90" and kind is not None:
        said += f" The best-read tenth of the {what} is at {reached_by(decided)}; unguarded {decided.open_cut:.2f}."
    if decided.statistic == "names":
        said += (
            f" Of names and numbers {reached_by(decided)} are read; unguarded {decided.open_cut:.2f}, a blind guess "
            f"{decided.floor:.2f}."
        )
    if decided.column is not None:
        said += (
            f" The column {decided.column['name']!r} is read at {reached_by(decided)}; unguarded "
            f"{decided.open_cut:.2f}, a blind guess {decided.floor:.2f}."
        )
    least = "at least " if at_least(judged) else ""
    ends = judged.leak_interval
    within = "" if ends is None else f" ({percents(ends)})"
    control_failed = all(row.get("why_control_failed") is not None for row in own)
    unsure = " Its control failed, but what it found it has found." if control_failed else ""
    return f"{opening} {said} So {least}{100 * judged.leak:.0f} % of the leak is left{within}.{unsure}"
