"""A headline of a paper as an experiment: the claim, the paper's figure, commands that measure it, and how a verdict
follows from their JSON. Verdicts are computed, never typed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, stdev
from typing import Any, NamedTuple

HOLDS, PARTLY, DOES_NOT, NOT_TESTABLE, NOT_MEASURED = (
    "holds", "partly", "does not hold", "not testable here", "not measured"
)  # fmt: skip
VERDICTS = (HOLDS, PARTLY, DOES_NOT, NOT_TESTABLE, NOT_MEASURED)
BUDGETS = {
    "quick": "two cores, minutes",
    "medium": "a GPU, minutes",
    "full": "published sizes, for a GPU",
}
# Student's t, two-sided 95 %, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Data = Mapping[str, Any]


class Figure(NamedTuple):
    """One number of ours, with its 95 % interval where there are several seeds or images, beside the paper's."""

    what: str
    ours: float
    low: float | None = None
    high: float | None = None
    paper: float | None = None
    points: bool = False  # of accuracy: printed as such

    def shown(self, whose: str = "paper") -> str:
        digits = 1 if self.points else 3
        text = f"{self.ours:.{digits}f}"
        if self.low is not None and self.high is not None:
            text += f" ({self.low:.{digits}f} to {self.high:.{digits}f})"
        return f"{self.what} {text}" + (f", {whose} {self.paper:.{digits}f}" if self.paper is not None else "")


class Finding(NamedTuple):
    """What became of a claim."""

    verdict: str
    why: str
    figures: tuple[Figure, ...] = ()


class Earlier(NamedTuple):
    """Committed evidence from before the experiment had a name: a file of docs/evidence, which part of it is judged (what
    else is in the file was not measured for this claim), and how."""

    file: str
    judge: Callable[[Any], Finding]
    part: Callable[[Any], Any] = lambda data: data


@dataclass(frozen=True)
class Experiment:
    """One headline. `quick`, `medium` and `full` are commands of `cutlayer` by name; a budget may have fewer of them."""

    name: str
    paper: str
    claim: str
    figure: str  # the paper's, in its own units
    full: Mapping[str, str]
    judge: Callable[[Mapping[str, Data]], Finding]
    quick: Mapping[str, str] = field(default_factory=dict)  # empty: there is no small budget
    earlier: tuple[Earlier, ...] = ()
    whose: str = "paper"  # figure that is; a goal where no paper has one
    not_testable: str = ""  # why no command can answer it here
    # Commands that follow from what the first ones gave: settings chosen by validation, run with seeds not seen yet.
    after: Callable[[Mapping[str, Data], str], Mapping[str, str]] | None = None
    medium: Mapping[str, str] = field(default_factory=dict)  # empty: there is none between

    def commands(self, budget: str) -> Mapping[str, str]:
        if budget not in BUDGETS:
            known = ", ".join(f"{name} ({size})" for name, size in BUDGETS.items())
            raise ValueError(f"--budget is one of {known}; got {budget!r}")
        if budget == "quick" and not self.quick:
            raise ValueError(
                f"{self.name} has no small budget, its networks are those of the paper: --budget full, on a GPU"
            )
        if budget == "medium" and not self.medium:
            raise ValueError(f"{self.name} has no budget between quick and full: --budget full, on a GPU")
        return {"quick": self.quick, "medium": self.medium, "full": self.full}[budget]


# ------------------------------------------------------------------ figures
def over_seeds(what: str, values: Iterable[float], paper: float | None = None, points: bool = False) -> Figure:
    """Mean and Student's interval over seeds; of one seed the mean alone."""
    known = list(values)
    middle = mean(known)
    if len(known) < 2:
        return Figure(what, middle, None, None, paper, points)
    half = _T[min(len(known) - 2, len(_T) - 1)] * stdev(known) / sqrt(len(known))
    return Figure(what, middle, middle - half, middle + half, paper, points)


def accuracies(data: Data, variant: str) -> list[float]:
    """Of a comparison: test accuracy of a variant by seed, in percent. A run that was lost counts as lost."""
    rows = [row for row in data["rows"] if row["variant"] == variant]
    if not rows:
        names = ", ".join(dict.fromkeys(row["variant"] for row in data["rows"]))
        raise KeyError(f"there is no variant {variant!r}; there is {names}")
    return [100 * row["accuracy"] if row["accuracy"] is not None else 0.0 for row in rows]


def best_by_seed(data: Data, guard: str, column: str = "value") -> list[float]:
    """Of an audit: what the attack that reads most behind a guard reads, by seed; what was told it is left out."""
    best: dict[int, Any] = {}
    for row in data["rows"]:
        counts = row["guard"] == guard and row.get("secret", "images") == "images" and not row.get("ceiling")
        if counts and (row["seed"] not in best or row["value"] > best[row["seed"]]["value"]):
            best[row["seed"]] = row
    return [row[column] for row in best.values()]


def lost(data: Data, before: str, after: str, what: str, paper: float | None = None) -> Figure:
    """Points of accuracy that `after` is below `before`, seed by seed."""
    pairs = zip(accuracies(data, before), accuracies(data, after), strict=True)
    return over_seeds(what, [one - other for one, other in pairs], paper, points=True)


def read_by(data: Data, guard: str, *attacks: str, form: str | None = None, **wanted: Any) -> Figure | None:
    """Of an audit: the best that attacks whose names begin so read behind a guard, with the interval over images."""
    rows = [
        row
        for row in data["rows"]
        if row["guard"] == guard
        and row.get("secret", "images") == "images"
        and (not attacks or row["attack"].startswith(attacks))
        and (form is None or row.get("form") == form)
        and all(row.get(name) == value for name, value in wanted.items())
    ]
    if not rows:
        return None
    best = max(rows, key=lambda row: row["value"])
    low, high = best.get("interval", {}).get("value", (None, None))
    return Figure(f"SSIM of {best['attack'].partition('(')[0]} behind {guard}", best["value"], low, high)


def guard_accuracy(data: Data, guard: str) -> list[float]:
    """Of an audit: accuracy of a guard by seed, in percent."""
    return [
        100 * one for one in {row["seed"]: row["accuracy"] for row in data["rows"] if row["guard"] == guard}.values()
    ]


def within(figure: Figure, target: float, slack: float) -> bool:
    """Whether the interval, widened by `slack` for what the settings leave open, holds the paper's figure."""
    low = figure.ours if figure.low is None else figure.low
    high = figure.ours if figure.high is None else figure.high
    return low - slack <= target <= high + slack


def surely(figure: Figure, most: float) -> bool:
    """Whether a loss is at most so large at the upper end of its interval; of one seed, by itself."""
    return (figure.ours if figure.high is None else figure.high) <= most


# ------------------------------------------------------------------ what is committed of a result
_ROW = (
    "variant", "guard", "attack", "plain", "form", "secret", "target", "ceiling", "valid", "why_invalid", "seed", "tries",
    "n", "value", "metric", "chance", "interval", "ssim", "psnr", "mse", "ncc", "lpips", "feature_cosine", "recon_std",
    "accuracy", "accuracy_last", "val", "failed", "best_epoch", "epochs", "steps", "client_steps", "seconds", "bytes",
    "bytes_up", "bytes_down", "mean_iou", "perplexity", "hijacked", "detectors_honest", "detectors_attacked",
    "server_detectors", "reader", "clients_drawn",
)  # fmt: skip


def trimmed(data: Data) -> dict[str, Any]:
    """A compare.json or audit.json without what no verdict reads: pictures' scores, ledgers, clients."""
    rows = []
    for row in data["rows"]:
        kept = {name: _short(row[name]) for name in _ROW if name in row}
        if "history" in row:
            kept["by_epoch"] = [_short(one.get("val", one.get("test"))) for one in row["history"]]
        if "rates" in row:
            kept["uplink_ratio"] = _short(row["rates"].get("uplink ratio"))
            kept["bits_per_input_pixel"] = _short(row["rates"].get("bits per input pixel"))
        rows.append(kept)
    found: dict[str, Any] = {"plan": data["plan"], "rows": rows, "left_out": data.get("left_out", {})}
    if "floors" in data:
        wanted = ("ssim", "mse", "ncc")
        found["floors"] = {
            name: {one: _short(marks[one]) for one in wanted if marks.get(one) is not None}
            for name, marks in data["floors"].items()
        }
        found["verdicts"] = [
            {name: _short(one[name]) for name in ("guard", "grade", "leak", "sentence")} for one in data["verdicts"]
        ]
        found["poisoned"], found["not_tried"] = data.get("poisoned", []), data.get("not_tried", [])
    return found


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list | tuple) else value


def names_of(experiments: Sequence[Experiment]) -> dict[str, Experiment]:
    found = {one.name: one for one in experiments}
    assert len(found) == len(experiments), "every experiment has a name of its own"
    return found
