"""What the detectors of an audit noticed, as tables and in words: pure functions from its rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..kinds import rebuilt
from ..rows import DetectorRow, Floors, Leak, MeterRow, PoisonRow, Row
from ..verdicts import strongest
from .plots import INK, SOFT, png, pyplot

NAMED = 3  # trainings in a sentence, at most
TOO_LOW = -0.05  # SSIM below the best attack, from which on an estimate is called too low


class Watched(DetectorRow, total=False):
    """A client's detector in one training, for the report."""

    guard: str
    seed: int
    attack: str | None
    end_ssim: float | None  # of the attack's pictures in the end, if nobody stops
    end_ncc: float | None


class ServerWatched(DetectorRow, total=False):
    """A detector of the server in one training, for the report."""

    guard: str
    seed: int
    poisoned: DetectorRow | None  # the same with malicious clients


# ------------------------------------------------------------------ clients that watch the server
def watchdogs(rows: Sequence[Row]) -> list[Watched]:
    """A row for each guard, seed and detector: how it did in honest training, and under each active attack."""
    found: dict[tuple[Any, ...], Watched] = {}
    for row in rows:
        silent: list[DetectorRow] = [{"detected": False}] * len(row.get("detectors_honest", []))
        active = row.get("detectors_attacked") or silent
        for honest, evil in zip(row.get("detectors_honest", []), active, strict=True):
            if _meters(honest):
                continue
            attack = row["attack"] if row.get("detectors_attacked") else None
            key = (row["guard"], row["seed"], honest["detector"], attack)
            of: Watched = {"guard": row["guard"], "seed": row["seed"], "attack": attack}
            end: Watched = {"end_ssim": row["ssim"], "end_ncc": row["ncc"]}
            found[key] = {**honest, **of, **end, **evil}
    under_attack = {key[:3] for key in found if key[3] is not None}
    return [one for key, one in found.items() if key[3] is not None or key[:3] not in under_attack]


def _meters(watched: DetectorRow) -> bool:
    """Whether this detector says how much leaks, and nothing of the server."""
    return "leak" in watched


class Floor(NamedTuple):
    """The best picture that a label alone gives, or none at all, where images have no class."""

    name: str
    ssim: float
    ncc: float


def picture_floor(floors: Floors) -> Floor:
    name = "class_mean" if "class_mean" in floors else "mean"
    figures = floors[name]
    return Floor(name.replace("_", " "), figures.get("ssim") or 0.0, figures.get("ncc") or 0.0)


def missed(rows: Sequence[Row], floors: Floors) -> list[str]:
    """Which detectors missed which active attack, and whether its pictures were worth anything."""
    floor, by_attack = picture_floor(floors), dict[str, list[list[Watched]]]()
    for told in _trainings(watchdogs(rows)):
        by_attack.setdefault(str(told[0]["attack"]), []).append(told)
    said = []
    for attack, trainings in by_attack.items():
        silent = [told for told in trainings if not any(one["detected"] for one in told)]
        if silent:
            where = _some(len(silent), len(trainings))
            said.append(f"No detector noticed {attack}{where}, {_worth(silent, floor)}.")
        heard = [told for told in trainings if told not in silent]
        said += _some_missed(attack, heard)
        late = [told for told in heard if _ssim_at_first(told) > floor.ssim]
        if late:
            best = max(map(_ssim_at_first, late))
            said.append(
                f"The first alarm about {attack}{_some(len(late), len(trainings))} came too late: its pictures had "
                f"SSIM {best:.2f} by then; {floor.name} {floor.ssim:.2f}."
            )
    said += called_for_nothing(watchdogs(rows), "steps")
    if by_attack and not said:
        said = ["Every detector noticed every active attack, and one of them always before its pictures beat "
                f"the {floor.name} (SSIM {floor.ssim:.2f})."]  # fmt: skip
    return said


def _trainings(shown: Sequence[Watched]) -> list[list[Watched]]:
    """What all detectors said of the same training with an attacker."""
    found: dict[tuple[Any, ...], list[Watched]] = {}
    for one in shown:
        if one["attack"] is not None:
            found.setdefault((one["guard"], one["seed"], one["attack"]), []).append(one)
    return list(found.values())


def _ssim_at_first(told: Sequence[Watched]) -> float:
    """What the pictures were worth when the first of these called."""
    first = min((one for one in told if one["detected"]), key=lambda one: one["delay"])
    return float(first["ssim"])


def called_for_nothing(honest: Sequence[Watched] | Sequence[ServerWatched], unit: str) -> list[str]:
    """Detectors that raised alarms about an honest side, the worst of their trainings."""
    worst: dict[str, Watched | ServerWatched] = {}
    for one in honest:
        before = worst.get(one["detector"])
        if one["false_alarms"] > (0 if before is None else before["false_alarms"]):
            worst[one["detector"]] = one
    return [
        f"{name} called for nothing, {one['false_alarms_per_1000']:.0f} times in 1,000 honest {unit} "
        f"({_where(one['guard'], one['seed'])})."
        for name, one in worst.items()
    ]


def _some_missed(attack: str, heard: Sequence[Sequence[Watched]]) -> list[str]:
    """Of trainings in which somebody called: who did not."""
    names = list(dict.fromkeys(one["detector"] for told in heard for one in told))
    count = {name: sum(not one["detected"] for told in heard for one in told if one["detector"] == name)
             for name in names}  # fmt: skip
    silent = [name + _some(count[name], len(heard)) for name in names if count[name]]
    called = [name for name in names if count[name] < len(heard)]
    return [f"{_and(silent)} missed {attack}; {_and(called)} noticed it."] if silent else []


def _worth(trainings: Sequence[Sequence[Watched]], floor: Floor) -> str:
    """What was made of trainings that nobody stopped."""
    best = max((end for told in trainings if (end := told[0]["end_ssim"]) is not None), default=None)
    if best is None:
        return "which makes no pictures"
    if best > floor.ssim:
        return f"whose pictures reached SSIM {best:.2f}; {floor.name} {floor.ssim:.2f}"
    return f"but its pictures, at SSIM {best:.2f}, are no better than the {floor.name} ({floor.ssim:.2f})"


def _some(count: int, all_of_them: int) -> str:
    return "" if count == all_of_them else f" in {count} of {all_of_them} trainings"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --------------------------------------------------------------------- clients that measure the leak
def meters(rows: Sequence[Row]) -> list[MeterRow]:
    """A row for each training and LeakMeter: its estimate, beside the best attack on that same training."""
    found: dict[tuple[Any, ...], MeterRow] = {}
    for row in rows:
        told: list[tuple[Row | None, DetectorRow]] = [(None, one) for one in row.get("detectors_honest", [])]
        told += [(row, one) for one in row.get("detectors_attacked", [])]
        for active, one in told:
            key = (row["guard"], row["seed"], None if active is None else row["attack"], one["detector"])
            if _meters(one) and key not in found:
                rivals = [other for other in rows if (other["guard"], other["seed"]) == key[:2]]
                passive = [other for other in rivals if "hijacked" not in other]
                found[key] = _metered(key, one, strongest(passive if active is None else [active], row["guard"]))
    return list(found.values())


def _metered(key: tuple[Any, ...], told: DetectorRow, attack: Row | None) -> MeterRow:
    estimate = _highest(told["leak"])
    names = ("step", "reader", "ssim", "ncc", "plus_minus", "floor", "accuracy", "accuracy_plus_minus", "chance")
    shown: dict[str, Any] = {name: None if estimate is None else estimate.get(name) for name in names}
    shown["estimate"] = None if estimate is None else _estimate(estimate)
    best: Any = None if attack is None else attack["value"]  # of the picture or its negative
    found = {
        **dict(zip(("guard", "seed", "hijacked_by", "detector"), key, strict=True)),
        **shown,
        "attack": None if attack is None else attack["attack"],
        "attack_ssim": best,
        "margin": None if best is None or shown["estimate"] is None else shown["estimate"] - best,
        "leak_so_far": told["leak_so_far"],
        "exceeded": told["exceeded"],
        "course": [[one["step"], _estimate(one), one["plus_minus"], one["floor"]] for one in told["leak"]],
    }
    return cast(MeterRow, found)


def _highest(leak: Sequence[Leak]) -> Leak | None:
    """The one that counts: what was sent cannot be taken back. Those before the guard was changed tell of another."""
    changed = max((place + 1 for place, one in enumerate(leak) if "guard" in one), default=0)
    return max(leak[changed:] or leak, key=lambda one: _estimate(one) or 0.0, default=None)


def _estimate(one: Leak) -> float | None:
    """The figure that an attack's is compared with: SSIM, skill, correlation or token accuracy."""
    known = cast(Mapping[str, float | None], one)
    figures = ("ssim", "skill", "correlation", "token_accuracy")
    return next((known[name] for name in figures if known.get(name) is not None), None)


def metered(rows: Sequence[Row]) -> list[str]:
    """What the meters said, in words: budgets that were exceeded, and estimates that an attack surpassed."""
    found, said = meters(rows), []
    for name in dict.fromkeys(one["detector"] for one in found):
        own = [one for one in found if one["detector"] == name]
        if over := [one for one in own if one["exceeded"]]:
            said.append(f"The budget of {name} was exceeded {_in(over, own)}.")
        compared = [one for one in own if one["margin"] is not None]
        if low := [one for one in compared if one["margin"] < TOO_LOW]:
            worst = min(low, key=lambda one: one["margin"])
            said.append(
                f"The estimate of {name} was too low {_in(low, compared)}: {worst['attack']} reached {_said(rows)} "
                f"{worst['attack_ssim']:.2f}, {-worst['margin']:.2f} more. Give the readers more steps or samples."
            )
        elif compared:
            least, most = (_signed(pick(one["margin"] for one in compared)) for pick in (min, max))
            span = least if least == most else f"{least} to {most}"
            said.append(f"The estimates of {name}, less the best attack on the same training: {span} {_said(rows)}.")
    return said


def _said(rows: Sequence[Row]) -> str:
    """What the figure of these reconstructions is called."""
    return next((kind.said for row in rows if (kind := rebuilt(row)) is not None), "SSIM")


def _in(some: Sequence[MeterRow], of: Sequence[MeterRow]) -> str:
    """In which trainings; where it is not all of them, by name."""
    if len(some) == len(of):
        return "in every training"
    named = [_where(one["guard"], one["seed"], one["hijacked_by"]) for one in some[:NAMED]]
    more = f"; and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return f"in {len(some)} of {len(of)} trainings ({'; '.join(named)}{more})"


def _where(guard: str, seed: int, hijacked_by: str | None = None) -> str:
    name = "no guard" if guard == "none" else guard
    return f"{name}, seed {seed}" + (f", hijacked by {hijacked_by}" if hijacked_by else "")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def leak_plot(rows: Sequence[Row]) -> bytes | None:
    """The estimates over the steps of honest training, a line a guard; None where there is no course to draw."""
    found = [one for one in meters(rows) if one["hijacked_by"] is None and len(one["course"]) > 1]
    first = {one["guard"]: one for one in reversed(found)}  # of several seeds the first
    if not first:
        return None
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(9.6, 3.4))
    for place, one in enumerate(reversed(first.values())):
        steps, ssim, spread, floor = zip(*one["course"], strict=True)
        colour = "#c2452d" if one["guard"] == "none" else plt.cm.viridis(0.1 + 0.75 * place / len(first))
        axes.plot(steps, ssim, marker="o", ms=4, color=colour, label=one["guard"])
        low, high = ([s + sign * e for s, e in zip(ssim, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(steps, floor, color=SOFT, lw=1, ls=":", label=None if place else "class mean")
    axes.set_xlabel("the client's steps")
    axes.set_ylabel(f"estimated {_said(rows)}")
    axes.set_ylim(0, 1)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelcolor=INK)
    return png(figure, plt)


# ------------------------------------------------------------------ a server that watches clients
def servers(rows: Sequence[Row], poisoned: Sequence[PoisonRow]) -> list[ServerWatched]:
    """A row for each guard, seed and detector of the server: honest training, and that with malicious clients."""
    found: dict[tuple[Any, ...], ServerWatched] = {}
    evil = {
        (one["guard"], one["seed"], told["detector"]): told for one in poisoned for told in one["detectors_attacked"]
    }
    for row in rows:
        for honest in row.get("server_detectors", []):
            key = (row["guard"], row["seed"], honest["detector"])
            found[key] = {"guard": row["guard"], "seed": row["seed"], **honest, "poisoned": evil.get(key)}
    return list(found.values())


def noticed_poison(rows: Sequence[Row], poisoned: Sequence[PoisonRow]) -> list[str]:
    """Whether the server noticed malicious clients, and what they had achieved by then; and whom else it flagged."""
    said = called_for_nothing(servers(rows, poisoned), "rounds")
    for one in poisoned:
        guard = "Without a guard" if one["guard"] == "none" else f"With {one['guard']}"
        end = f"success rate {_number(one['success_rate'])} in the end"
        if one["has_trigger"]:
            end += f", {_number(one['success_without'])} without the patch"
        for told in one["detectors_attacked"]:
            said.append(f"{guard}, seed {one['seed']}: " + (
                f"{told['detector']} flagged a malicious client in round {told['delay']}, at a success rate of "
                f"{_number(told['success_then'])}; nobody was stopped: {end}."
                if told["detected"]
                else f"{told['detector']} noticed no malicious client of {one['attack']}: {end}."
            ))  # fmt: skip
        if not one["detectors_attacked"]:
            said.append(f"{guard}, seed {one['seed']}: {one['attack']}, {end}; no detector watched.")
    return said


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def in_words(rows: Sequence[Row], poisoned: Sequence[PoisonRow], floors: Floors) -> list[str]:
    """All of it, for who reads no tables."""
    return [*missed(rows, floors), *metered(rows), *noticed_poison(rows, poisoned)]
