"""The words of a verdict and every threshold behind them, in one place; docs/audit.md has the same table."""

# Share of the unguarded leak that is still there at most, and what we call it.
GRADES = ((0.10, "hides"), (0.35, "blunts"), (0.70, "weakens"), (float("inf"), "does not protect"))
OPEN, TASK_LOST, UNKNOWN = "open", "task lost", "unknown"
UNSURE = (UNKNOWN, TASK_LOST)  # what was read is a lower bound of the leak, and ranks no guard
GOOD = ("hides", "blunts")  # these need strong attackers; what a weak one fails to find proves nothing
# From good to bad. What is not known is worse than what was shown to be good, and better than what is bad.
BY_BADNESS = ("hides", "blunts", UNKNOWN, "weakens", "does not protect")

LEAST_LEAK = 0.05  # SSIM, accuracy or AUC above a blind guess: less than that leaves no leak to take shares of
LEAST_TASK = 0.5  # of the unguarded accuracy: below it a guard has hidden the task as well
LEAST_GAIN = 0.2  # of what it is above always naming the commonest class: below it, too
LEAST_LEARNT = 0.2  # of the way from naming the commonest class to being always right: less is hardly a model
# SSIM, skill or correlation a white-box attacker must reach on the open cut before finding little means anything.
STRONG_CONTROL = 0.5
STRONG_SHARE = 0.7  # of what the strongest attacker reads of the open cut, that the white box must read of it too
LEAST_UNITS = 30  # samples, or rows that samples share, that a good grade must have been seen on
MOST_EPSILON = 10.0  # above it an ε promises next to nothing, whatever was asked for
READ_BETTER = 1.0  # dB of PSNR above the open cut's from which a guard is said to be read better
WIDE_GAP = 0.15  # SSIM that an attack gains by knowing the guard, from which on the report says so in words


def grade_of(leak: float) -> str:
    """The word for a share of the leak."""
    return next(name for limit, name in GRADES if leak <= limit)


def at_best(identified: float) -> str:
    """The best grade of pictures by the share of them that still tell which image they are of.

    Like any share of the leak, but by itself never worse than "weakens": to be picked out among others, a picture
    need not show what was in the original.
    """
    return grade_of(min(identified, GRADES[2][0]))


def worse(*grades: str) -> str:
    return max(grades, key=BY_BADNESS.index)


def both(better: str, worst: str) -> str:
    """Two grades that an interval spans, as they are printed; what is not known is no grade beside another."""
    return worst if better in (worst, UNKNOWN) else f"{better} or {worst}"
