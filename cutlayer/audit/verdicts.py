"""What the figures of an audit mean, in words: pure functions from rows to sentences."""

from typing import NamedTuple

from .rows import Floors, Row

# A picture made without any message. (The unaligned decoder reads them, so what it gets is leakage, not a floor.)
BLIND = ("blank", "mean", "class_mean")
LEAST_LEAK = (
    0.05  # SSIM the unguarded cut must give away above the best blind guess before shares of it mean anything
)

LEAST_TASK = 0.5  # of the unguarded accuracy: below it a guard has hidden the task as well

# Share of the unguarded leak (SSIM above the best floor) that is still there, and what we call it.
GRADES = ((0.10, "hides"), (0.35, "blunts"), (0.70, "weakens"), (float("inf"), "does not protect"))


# SSIM that an attack gains by knowing the guard, from which on the report says so in words.
WIDE_GAP = 0.15


class Verdict(NamedTuple):
    """One guard: its strongest valid attacker, how much of the leak that one still gets, and a sentence."""

    row: Row | None
    leak: float | None
    grade: str
    sentence: str


def strongest(rows: list[Row], guard: str) -> Row | None:
    """The row that counts for a guard: the best valid reconstruction, over all attacks and seeds.

    An attacker that was told a secret is a limit and no threat: it counts only where there is no other.
    """
    valid = [row for row in rows if row["guard"] == guard and row["valid"] and row.get("metric", "ssim") == "ssim"]
    real = [row for row in valid if not row.get("ceiling")]
    return max(real or valid, key=lambda row: row["value"], default=None)


def ceiling(rows: list[Row], guard: str) -> Row | None:
    """The best of those attackers that were told a secret, if there are any."""
    told = [row for row in rows if row["guard"] == guard and row["valid"] and row.get("ceiling")]
    return max(told, key=lambda row: row["value"], default=None)


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


def by_form(rows: list[Row], guard: str) -> list[Forms]:
    """The attacks that met this guard both with and without knowing it, those first that gained most.

    Only those that passed their control; what then fails against the guard is what not knowing it comes to.
    """
    found: dict[str, dict[str, float]] = {}
    pictured = [row for row in rows if row["guard"] == guard and row.get("form") and row["metric"] == "ssim"]
    for row in pictured:
        if row["why_control_failed"] is None and not row["ceiling"]:
            best = found.setdefault(row["plain"], {})
            best[row["form"]] = max(row["ssim"], best.get(row["form"], -1.0))
    both = [Forms(guard, plain.partition("(")[0], ssim) for plain, ssim in found.items() if "oblivious" in ssim]
    return sorted((forms for forms in both if len(forms.ssim) > 1), key=lambda forms: -forms.gain)


def total_bytes(row: Row) -> float:
    """Bytes a training sample costs: all messages of its step, both ways, and its share of what goes now and then.

    These are relayed weights, and the decoders that some guards exchange.
    """
    return row["bytes_up"] + row["bytes_down"] + row["bytes_weights"] + row.get("rates", {}).get("amortised", 0.0)


def guards_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["guard"] for row in rows))


def leak_share(value: float, control: float, floor: float) -> float:
    """How much of what the unguarded cut gives away is still given away: 1 all of it, 0 no more than the floor."""
    return max(0.0, (value - floor) / max(1e-9, control - floor))


def blind_guess(floors: Floors) -> float:
    """SSIM of the best picture that needs no message."""
    return max(floors[name]["ssim"] or 0.0 for name in BLIND if name in floors)


def verdict(rows: list[Row], floors: Floors, guard: str) -> Verdict:
    row, control = strongest(rows, guard), strongest(rows, "none")
    if row is None or control is None:
        reasons = {r["why_invalid"] for r in rows if r["guard"] == guard and r["why_invalid"]}
        return Verdict(
            None, None, "unknown", f"No valid attack, so nothing can be said: {'; '.join(sorted(reasons))}."
        )
    floor = blind_guess(floors)
    if control["ssim"] < floor + LEAST_LEAK:
        return Verdict(row, None, "unknown", (
            f"Even unguarded the images come back at SSIM {control['ssim']:.2f} only, hardly above a blind guess "
            f"({floor:.2f}): this cut leaks too little for this attacker to compare guards with."
        ))  # fmt: skip
    if guard == "none":
        return Verdict(row, 1.0, "open", (
            f"Without a guard the server rebuilds private images at SSIM {row['ssim']:.2f} "
            f"(a blind guess reaches {floor:.2f})."
        ))  # fmt: skip
    leak = leak_share(row["ssim"], control["ssim"], floor)
    if row["accuracy"] < control["accuracy"] * LEAST_TASK:
        return Verdict(row, leak, "task lost", (
            f"The task is lost: accuracy {row['accuracy']:.2f} against {control['accuracy']:.2f} unguarded. "
            f"That {100 * leak:.0f} % of the leak is left says little about a guard nobody could use."
        ))  # fmt: skip
    grade = next(name for limit, name in GRADES if leak <= limit)
    points = f"{100 * (row['accuracy'] - control['accuracy']):+.1f}".replace("-", "−")
    ratio = total_bytes(control) / total_bytes(row)
    told = ceiling(rows, guard)
    limit = "" if told is None or told is row else f" Who knew the key would reach {told['ssim']:.2f}."
    limit += "".join(f" {forms.sentence}" for forms in by_form(rows, guard)[:1] if forms.gain >= WIDE_GAP)
    return Verdict(row, leak, grade, (
        f"{_opening(grade)} The server still rebuilds images at SSIM {row['ssim']:.2f} "
        f"against {control['ssim']:.2f} unguarded: {100 * leak:.0f} % of the leak is left. "
        f"Accuracy {points} points, {ratio:.1f}x fewer bytes over everything that travels.{limit}"
    ))  # fmt: skip


def _opening(grade: str) -> str:
    return {
        "hides": "Hides the images from this attacker.",
        "blunts": "Blunts the attack.",
        "weakens": "Weakens the attack, no more.",
        "does not protect": "Does not protect.",
    }[grade]
