"""Whether a low score means anything: what a good grade may rest on, and runs that prove less than they seem to."""

from collections.abc import Sequence

from ..training.facts.privacy import rounding
from .floors import blind_guess
from .grades import (
    LEAST_GAIN,
    LEAST_LEARNT,
    LEAST_TASK,
    LEAST_UNITS,
    MOST_EPSILON,
    READ_BETTER,
    STRONG_CONTROL,
    STRONG_SHARE,
)
from .kinds import rebuilt
from .rows import Floors, Row


def passed(row: Row) -> bool:
    """It counts, and its control worked: then a low score is the guard's doing."""
    return row["valid"] and row.get("why_control_failed") is None


def rests_on(rows: Sequence[Row]) -> list[str]:
    """The attackers whose low scores mean something, the white boxes first."""
    sound = sorted((row for row in rows if passed(row)), key=lambda row: not row.get("white_box", False))
    told = {row["attack"]: row for row in sound}
    return [f"{name}{' (white box)' if row.get('white_box') else ''}" for name, row in told.items()]


def doubts(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> list[str]:
    """Why one secret behind one guard cannot be graded well; nothing: it can.

    `rows` are all attacks on that secret, `unguarded` those on the open cut. An ε takes the place of attackers.
    """
    weak = [] if epsilon_holds(rows) else [*_weakness(rows, unguarded, floors), *_unlinked(rows)]
    return [*weak, *hollow(rows, unguarded, floors)]


def _weakness(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> list[str]:
    """What is lacking of one strong attacker: a valid white box, at its usual strength, on enough samples."""
    boxes = [row for row in rows if passed(row) and row.get("white_box")]
    if not boxes:
        return ["no white-box attacker with a working control tried it, and what weaker ones miss proves nothing"]
    strong = [row for row in boxes if not row.get("below_default")]
    if not strong:
        return [below_default(row) for row in boxes[:1]]
    names, controls = {row["plain"] for row in strong}, [row for row in unguarded if passed(row)]
    best = max((row["value"] for row in controls if row["plain"] in names), default=0.0)
    kind = rebuilt(strong[0])
    if kind is not None and best < STRONG_CONTROL:
        return [
            f"even unguarded the white-box attacker reaches {kind.said} {best:.2f} only, below {STRONG_CONTROL:.2f}"
        ]
    most = max((row["value"] for row in controls), default=0.0)
    floor = strong[0]["chance"] if kind is None else blind_guess(floors, kind.statistics["value"])
    if best - floor < STRONG_SHARE * (most - floor):
        return [f"unguarded the white-box attacker reaches {best:.2f} only, where another one reaches {most:.2f}"]
    if all("sampled" not in row for row in strong):
        return ["scores of single samples were not kept, so neither the tail nor an interval is known"]
    if (count := max(_units(row) for row in strong)) < LEAST_UNITS:
        return [f"it was tried on {count} messages only, and a good grade takes {LEAST_UNITS}"]
    return []


def _unlinked(rows: Sequence[Row]) -> list[str]:
    """Pictures behind a guard that draws anew: what one message hides, those of several epochs may show together."""
    if not any(row.get("draws_anew") and row["secret"] == "images" for row in rows):
        return []
    linking = [row for row in rows if row.get("linked_by") and not row.get("ceiling")]
    if not linking:
        return ["the guard draws anew for every message, and nobody tried to read those of several epochs together"]
    if not any(passed(row) for row in linking):
        return ["the guard draws anew for every message, and who read those of several epochs failed its control"]
    return [below_default(linking[0])] if all(row.get("below_default") for row in linking) else []


def below_default(row: Row) -> str:
    return f"{row['plain']} worked below its default strength ({', '.join(row['below_default'])})"


def _units(row: Row) -> int:
    """How many independent observations stand behind a row."""
    sampled = row.get("sampled")
    if sampled is None:
        return 0
    return len(sampled["scores"]) if sampled["units"] is None else len(set(sampled["units"]))


def epsilon_holds(rows: Sequence[Row]) -> bool:
    """Whether the ledger's ε, over everything that left, is no larger than what was asked for, and small enough."""
    for row in rows:
        price, asked = row.get("privacy", {}).get("epsilon"), row.get("epsilon_asked")
        if price is not None and price["total"] is not None and asked is not None:
            most = min(asked, MOST_EPSILON)
            return bool(price["total"] <= most + rounding(most, price.get("epochs", 0)))
    return False


def hollow(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> list[str]:
    """What makes this comparison prove little whoever attacked: a model that learnt nothing, a guard read better."""
    found = [why for row in unguarded if (why := hardly_learnt(row))][:1]
    if why := _read_better(rows, unguarded, floors):
        found.append(why)
    return found


def _read_better(rows: Sequence[Row], unguarded: Sequence[Row], floors: Floors) -> str | None:
    """An open cut that is read worse than a guarded one was not read as well as it can be."""
    own, theirs = ([row for row in some if rebuilt(row) and row["valid"]] for some in (rows, unguarded))
    if not own or not theirs or own[0]["guard"] == "none":
        return None
    kind = rebuilt(own[0])
    assert kind is not None
    in_decibels = [[row["psnr"] for row in some if row.get("psnr") is not None] for some in (own, theirs)]
    if all(in_decibels):
        best, control = map(max, in_decibels)
        if best > max(control + READ_BETTER, blind_guess(floors, "psnr")):
            return f"the guard is read better than the open cut: PSNR {best:.1f} against {control:.1f} dB"
    known = [row for row in own if "interval" in row]
    sure = max((row["interval"]["value"][0] for row in known), default=0.0)
    if sure > max(row.get("interval", {}).get("value", [0, row["value"]])[1] for row in theirs):
        return f"the guard is read better than the open cut: {kind.said} at least {sure:.2f}"
    return None


def learnt(accuracy: float, chance: float) -> bool:
    """Whether a model is well above always naming the commonest class."""
    return accuracy >= chance + LEAST_LEARNT * (1 - chance)


def lost(accuracy: float, before: float, chance: float | None) -> str | None:
    """Why a guard of this accuracy has lost the task, beside the unguarded one and always naming the commonest class.

    Of two classes nobody gets below half of the unguarded accuracy: what counts is how much is above guessing.
    """
    said = f"accuracy {accuracy:.2f} against {before:.2f} unguarded"
    if accuracy < before * LEAST_TASK:
        return said
    if chance is None or not learnt(before, chance) or accuracy - chance >= LEAST_GAIN * (before - chance):
        return None
    return f"{said}, and always naming the commonest class gives {chance:.2f}"


def hardly_learnt(row: Row) -> str | None:
    """Whether the unguarded model is hardly one: what leaves such a network says little of one that learnt."""
    chance = row.get("accuracy_chance")
    if chance is None or learnt(row["accuracy"], chance):
        return None
    return (
        f"the unguarded model hardly learnt its task: accuracy {row['accuracy']:.3f}, and always naming the "
        f"commonest class gives {chance:.3f}"
    )
