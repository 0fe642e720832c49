"""What the parts of an audit hand to each other: events, scores, and the rows of audit.json, field by field.

docs/audit.md says what every field is; a test compares the two, and both with what audits write.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, TypedDict

from ..guards import Guard, NoGuard
from ..training.facts.made import Made

SCHEMA = 2  # of audit.json, and of the cells an interrupted audit keeps

Scores = dict[str, float | None]
Floors = dict[str, Scores]
Figure = Any  # a float, or None where it cannot be said: an attack that makes no pictures has no SSIM


@dataclass(frozen=True)
class Event:
    """What an audit is doing, for whoever shows progress."""

    what: str
    done: float  # share of the whole audit
    finished: "Finished | None" = None  # this cell was just made
    estimate: "Estimate | None" = None  # how long one will take, told once


class Finished(NamedTuple):
    """The how manyth cell this was, how long it took, and for how long there is work if others take as long."""

    number: int
    of: int
    seconds: float
    left: float | None  # None: of some kind of cell none was timed yet


class Estimate(NamedTuple):
    """How long one cell of a kind takes by its first steps, and how many of each kind are to be made."""

    kind: str
    seconds: float
    to_make: dict[str, int]


class Leak(TypedDict):
    """One measurement of a LeakMeter."""

    step: int
    reader: str
    readers: dict[str, float]
    ssim: Figure
    ncc: Figure
    plus_minus: float
    floor: float
    held_out: int
    seconds: float
    skill: NotRequired[float]  # of records
    correlation: NotRequired[float]  # of series
    token_accuracy: NotRequired[float]  # of texts
    accuracy: NotRequired[float]  # of an attribute
    accuracy_plus_minus: NotRequired[float]
    chance: NotRequired[float]
    guard: NotRequired[str]  # that the client went over to


class DetectorRow(TypedDict, total=False):
    """One detector in one training. Which fields there are hangs on whose it is, and on whom it watched."""

    detector: str
    # Honest training.
    steps: int  # of a client's
    lowest: Figure
    rounds: int  # of the server's
    threshold: Figure
    false_alarms: int
    false_alarms_per_1000: Figure
    # Under attack.
    score: Figure
    detected: bool
    delay: Any  # steps of a client, rounds of the server; None: never
    client: int
    why: str
    ssim: Figure
    ncc: Figure
    success_then: Figure
    suspects: list[int]
    z: Figure
    f1: Figure
    # A meter's.
    leak: list[Leak]
    leak_so_far: dict[str, float]
    exceeded: bool | None


class RunFacts(TypedDict, total=False):
    """What a guard costs and keeps, whoever attacks it."""

    guard: str
    fitted: bool
    accuracy: float
    accuracy_spread: float
    accuracy_chance: float
    labels_travel: bool
    draws_anew: bool
    epsilon_asked: float | None
    mean_iou: float
    perplexity: float
    fairness: dict[str, float] | None
    link: dict[str, Any] | None
    bytes_up: float
    bytes_down: float
    bytes_weights: float
    words_told: dict[str, float]
    sides: dict[str, Any]
    privacy: dict[str, Any]
    train_seconds: float
    client_memory: dict[str, int]
    within_over_total: float | None
    rates: dict[str, Any]
    ledger: dict[str, Any]
    detectors_honest: list[DetectorRow]
    server_detectors: list[DetectorRow]


class Remarks(TypedDict, total=False):
    """What attackers know of their own progress, each its own part of it."""

    reader: str
    readers: dict[str, float]
    autoencoder_mse: float
    cycle_error: float
    pilot_mse: float
    gap: float
    mmd: float
    task_accuracy: float
    told_apart: float
    match: float
    tightness: float
    key_empty: float | None
    linked_by: str
    epochs: int
    together: int


class ColumnRow(TypedDict):
    """One column of a table: how well it was read."""

    name: str
    skill: float
    interval: list[float]
    accuracy: float | None
    chance: float | None


class Sampled(TypedDict):
    """What the judge found for each scored sample, and which samples shared what was sent."""

    scores: list[float]
    units: list[int] | None


class Row(RunFacts, Remarks, total=False):
    """One attack on one guard under one seed."""

    attack: str
    plain: str
    form: str
    secret: str
    target: str
    knows: list[str]
    ceiling: bool
    white_box: bool
    below_default: list[str]
    seed: int
    tries: int
    n: int
    seconds: float
    hijacked: dict[str, Any]
    read_in: dict[str, float]
    detectors_attacked: list[DetectorRow]
    feature_mse: float
    feature_cosine: float
    links_right: float | None
    broken: int
    sampled: Sampled
    strangers: Sampled
    interval: dict[str, list[float]]
    above_half: Figure
    worst: list[list[Any]]
    identified: Figure
    identified_chance: Figure
    identified_each: Sampled
    class_named: Figure
    class_originals: Figure
    class_chance: Figure
    ssim: Figure
    ssim_either: Figure
    ssim_p90: Figure
    psnr: Figure
    mse: Figure
    ncc: Figure
    lpips: Figure
    ssim_inverted: Figure
    ssim_minmax: Figure
    fg_mse: Figure
    fg_psnr: Figure
    fg_ssim: Figure
    fg_lpips: Figure
    recon_std: Figure
    skill: float
    skill_p90: float
    columns: list[ColumnRow]
    still: list[str]
    correlation: float
    correlation_either: float
    correlation_p90: float
    spectral_error: float
    token_accuracy: float
    token_p90: float
    rouge_l: float
    names_found: float
    names_each: Sampled
    metric: str
    value: float
    chance: Figure
    why_control_failed: str | None
    valid: bool
    why_invalid: str | None


class UntriedRow(TypedDict):
    """An attack that did not take place: it lacked something that shows only at work."""

    guard: str
    attack: str
    seed: int
    why: str


class PoisonRow(TypedDict):
    """One guard under one seed, trained with malicious clients."""

    guard: str
    seed: int
    attack: str
    clients: list[int]
    success_rate: float | None
    success_without: float | None
    has_trigger: bool
    clean_accuracy: float | None
    detectors_attacked: list[DetectorRow]


class AloneRow(TypedDict):
    """Clients without a server under one seed: what they reach by themselves."""

    name: str
    seed: int
    protocol: str | None
    why_none: str | None
    budget: int | None
    costliest: str | None
    accuracy: Figure
    accuracy_worst: Figure
    accuracy_chance: Figure
    fairness: dict[str, float] | None
    steps: int | None
    steps_of_all: int | None
    macs: int | None
    parameters: int | None
    bytes: int
    leaves: str
    train_seconds: float | None


class Bought(TypedDict):
    """What the split with one guard buys over a client alone, and what of the leak it costs."""

    guard: str
    accuracy: float
    points: float
    points_equal_cost: float | None
    points_own_data: float | None
    leak: float | None
    grade: str


class MeterRow(TypedDict):
    """One LeakMeter in one training: its highest measurement, beside the best attack."""

    guard: str
    seed: int
    hijacked_by: str | None
    detector: str
    step: int | None
    reader: str | None
    estimate: Figure
    ssim: Figure
    ncc: Figure
    plus_minus: Figure
    floor: Figure
    accuracy: Figure
    accuracy_plus_minus: Figure
    chance: Figure
    attack: str | None
    attack_ssim: Figure
    margin: Figure
    leak_so_far: dict[str, float]
    exceeded: bool | None
    course: list[list[Any]]


@dataclass(frozen=True)
class SecretVerdict:
    """One secret behind one guard: the strongest attacker that counts, against the open cut and a blind guess."""

    secret: str  # "images" ("records", "series"), "labels", "attribute" or "membership"
    target: str  # which attribute
    grade: str  # the worse one, where the interval spans two
    graded: str  # both of them
    sentence: str
    attack: str | None = None
    seed: int | None = None
    statistic: str = (
        "value"  # or "p90" where the best-read tenth decided, "column" where a single column did, "names"
    )
    column: str | None = None  # which one
    reached: float | None = None  # that statistic
    interval: list[float] | None = None  # of it
    control: float | None = None  # the same statistic on the open cut
    floor: float | None = None  # the same of a blind guess, or chance
    leak: float | None = None  # share of what the open cut gives away
    leak_interval: list[float] | None = None
    by_seed: list[list[Any]] = field(default_factory=list)  # the leak under each seed: [seed, share]
    identified: float | None = None  # share of the pictures that tell which image they are of; None: not known
    identified_by: str | None = None  # the attacker whose pictures do
    identified_leak: float | None = None  # share of what the open cut gives away in this figure
    identified_floor: float | None = None  # the same figure of a blind guess
    above_half: float | None = None  # of all images, those with SSIM above 0.5
    worst: list[list[Any]] = field(default_factory=list)  # the ten images read best: [number, SSIM]
    rests_on: list[str] = field(default_factory=list)  # attackers whose low scores mean something
    doubts: list[str] = field(default_factory=list)  # why it cannot be graded well


@dataclass(frozen=True)
class Verdict:
    """One guard: the worst of its secrets."""

    guard: str
    grade: str
    graded: str
    leak: float | None  # of the secret that decided
    sentence: str
    secrets: list[SecretVerdict]
    untried: list[str]  # what no attack was after
    notes: list[str]  # what the verdict rests on, and what else a reader should know
    flags: list[str]  # what makes this run prove less than it seems to


class AuditData(TypedDict):
    """An audit as plain data."""

    schema: int
    plan: str
    floors: Floors
    rows: list[Row]
    poisoned: list[PoisonRow]
    alone: list[AloneRow]
    left_out: dict[str, str]
    not_tried: list[UntriedRow]
    failed: list[str]
    lpips_missing: str | None
    secrets: list[str]


class AuditFile(AuditData):
    """audit.json, whole: with what follows from the rows, and where it is from."""

    verdicts: list[dict[str, Any]]  # `Verdict`s
    flags: list[str]
    leak_meters: list[MeterRow]
    noticed: list[str]
    split_buys: list[Bought]
    split_buys_words: list[str]
    version: str
    made: Made
    command: str


def shown(guard: Guard) -> str:
    return "none" if guard == NoGuard() else repr(guard)


def picture_key(row: Row) -> str:
    return f"{row['guard']} | {row['attack']}"
