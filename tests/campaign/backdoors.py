"""What a backdoor by some of many clients comes to, and what the server sees of it: a cell of the grid at a time."""

from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from cutlayer.data import CIFAR10, Digits
from cutlayer.data.base import parts
from cutlayer.data.partitions import Dirichlet
from cutlayer.data.poisons import BadNets
from cutlayer.detectors import ConsensusCosine
from cutlayer.engines.local.run import LocalRun
from cutlayer.engines.poison_report import watched
from cutlayer.guards import Bottleneck1x1, Guard, LightSplit, NoGuard
from cutlayer.nets import LeNet, ResNet18
from cutlayer.rules import FedAvg, Krum, Median, Rollback, TrimmedMean
from cutlayer.training.plan.lr_schedules import Cosine
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave

USUAL = {"threshold": 3.0, "sides": 2, "leave_one_out": False}  # as the paper has it, as far as it says
WATCH = {
    "output": ConsensusCosine(),
    "output, 3 sigma": ConsensusCosine(**USUAL),
    "input": ConsensusCosine(signature="input"),
    "input, 3 sigma": ConsensusCosine(signature="input", **USUAL),
}
DIGITS = Plan(
    net=LeNet(),
    data=Digits(limit=1000),
    epochs=30,
    batch_size=32,
    val_share=0.0,
    server_detectors=tuple(WATCH.values()),
)
PHOTOS = Plan(
    net=ResNet18(depth=2),
    data=CIFAR10(batches=(1, 2)),
    epochs=15,
    batch_size=64,
    val_share=0.0,
    client_optimizer=SGD(weight_decay=0.0005),
    server_optimizer=SGD(weight_decay=0.0005),
    schedule=Cosine(),
    server_detectors=tuple(WATCH.values()),
)
EVEN = 1e7
GUARDS = (NoGuard(), Bottleneck1x1(ratio=16), LightSplit(ratio=16), LightSplit(ratio=16, hidden=512))


@dataclass(frozen=True)
class Cell:
    """LightSplit's defaults, of which one is varied at a time (Sec. V-A1)."""

    guard: Guard = LightSplit(ratio=16)
    alpha: float = EVEN
    clients: int = 10
    malicious: float = 0.1  # of the clients, one at least; 0: all are honest
    share: float = 0.3  # of a malicious client's samples
    rounds: Any = Relay()
    rule: Any = None
    seed: int = 0

    @property
    def setting(self) -> str:
        """What differs from the defaults, the guard and the seed aside."""
        usual = Cell()
        names = ("alpha", "clients", "malicious", "share", "rounds", "rule")
        return (
            ", ".join(f"{n}={getattr(self, n)}" for n in names if getattr(self, n) != getattr(usual, n)) or "defaults"
        )

    @property
    def honest(self) -> "Cell":
        """The same without an attacker."""
        return replace(self, malicious=0.0, share=Cell.share)


VARIED = [{"alpha": a} for a in (0.1, 1.0, 10.0)]
VARIED += [{"clients": n} for n in (5, 20, 50)]
VARIED += [{"malicious": m} for m in (0.2, 0.3)]
VARIED += [{"share": p} for p in (0.1, 0.2, 0.5, 0.8)]
SCHEDULES = [{"rounds": Wave()}, {"rounds": SplitFed()}]
RULES = [FedAvg(), Rollback(), Median(), TrimmedMean(share=0.3), Krum(bad=3, keep=5)]


def grid(seeds=(0, 1), base=(0, 1, 2)):
    """The paper's table, for every guard."""
    cells = [Cell(guard=guard, seed=seed) for seed in base for guard in GUARDS]
    return cells + [Cell(guard=guard, seed=seed, **one) for one in VARIED for guard in GUARDS for seed in seeds]


def beyond(seeds=(0, 1)):
    """What the paper does not have: clients at the same time, and rules that leave some of them out."""
    cells = [Cell(seed=seed, **one) for one in SCHEDULES for seed in seeds]
    # One client of ten does not get a backdoor past an average: three with most of their samples spoiled may.
    merging = Cell(guard=NoGuard(), rounds=SplitFed(), malicious=0.3, share=0.8)
    return cells + [replace(merging, rule=rule, seed=seed) for rule in RULES for seed in seeds]


def with_honest(cells):
    """Each honest run once, before the first that is compared with it."""
    return list(dict.fromkeys(one for cell in cells for one in (cell.honest, cell)))


def trained(cell, base=DIGITS, device="cpu", data_dir=None):
    """One run: what each detector saw, and what the poison came to."""
    count = max(1, round(cell.malicious * cell.clients))
    plan = replace(
        base,
        guard=cell.guard,
        clients=cell.clients,
        partition=Dirichlet(alpha=cell.alpha, minimum=8),
        poison=BadNets(clients=count, share=cell.share) if cell.malicious else None,
        rounds=cell.rounds,
        seed=cell.seed,
        private_seed=cell.seed + 77,
    )
    if cell.rule is not None:
        plan = replace(plan, rule=cell.rule)
    loaded = plan.data.load(data_dir)
    run = LocalRun(plan, parts(loaded, aux=0, val=0.0, seed=cell.seed), classes=10, device=device)
    run.train()
    found = watched(run)
    told = dict(zip(WATCH, found["server_detectors"], strict=True))
    accuracy = run.evaluate(run.parts.test)
    common = {"guard": repr(cell.guard), "setting": cell.setting, "seed": cell.seed, "plan": repr(plan)}
    common["accuracy"] = mean(accuracy)
    if not cell.malicious:
        kept = ("rounds", "alarms", "suspects", "threshold")
        alarms = {name: {key: one[key] for key in kept} for name, one in told.items()}
        when = {name: [n for n, one in enumerate(told[name]["course"]) if one["flagged"]] for name in told}
        return common | {"honest": {name: alarms[name] | {"when": when[name]} for name in told}}
    poison = found["poison"]
    return common | {
        "poison": poison,
        "watch": {n: seen(one, set(poison["clients"])) for n, one in told.items()},
    }


def seen(told, bad):
    """Of the last third of the rounds: the malicious clients' |z|, how often they are flagged, and the mean F1."""
    course = told["course"]
    rounds = course[-(len(course) // 3) :]
    flagged = [set(one["flagged"]) for one in rounds]
    return {
        "threshold": told["threshold"],
        "first_hit": next((n for n, one in enumerate(course) if bad & set(one["flagged"])), None),
        "suspects": told["suspects"],
        "z": median(abs(one["z"][client]) for one in rounds for client in bad if client in one["z"]),
        "furthest": mean(max(one["z"], key=one["z"].get) in bad for one in rounds),
        "detected": mean(bool(bad & one) for one in flagged),
        "false": mean(bool(one - bad) for one in flagged),
        "f1": mean(2 * len(bad & one) / (len(one) + len(bad)) for one in flagged),
    }


def table(runs):
    """A row for every guard and setting, over its seeds."""
    lines = [
        "| guard | setting | runs | success rate | clean accuracy | output: \\|z\\| | calibrated F1 | 3σ F1 "
        "| input: \\|z\\| | calibrated F1 | 3σ F1 | honest rounds with an alarm: output | 3σ | input | 3σ |",
        "|" + "---|" * 15,
    ]
    honest = {(run["guard"], run["setting"]): [] for run in runs if "honest" in run}
    for run in runs:
        if "honest" in run:
            honest[run["guard"], run["setting"]].append(run["honest"])
    for guard, setting in dict.fromkeys((run["guard"], run["setting"]) for run in runs if "poison" in run):
        mine = [run for run in runs if (run["guard"], run["setting"]) == (guard, setting)]
        cells = [guard, setting, str(len(mine))]
        cells += [f"{mean(run['poison'][key] for run in mine):.2f}" for key in ("success_rate", "clean_accuracy")]
        for name in ("output", "input"):
            cells.append(f"{mean(run['watch'][name]['z'] for run in mine):.1f}")
            cells += [f"{mean(run['watch'][one]['f1'] for run in mine):.2f}" for one in (name, f"{name}, 3 sigma")]
        beside = honest.get((guard, _honest_setting(setting)), [])
        for name in WATCH:
            alarms, rounds = (sum(one[name][key] for one in beside) for key in ("alarms", "rounds"))
            cells.append(f"{alarms} of {rounds}" if rounds else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _honest_setting(setting):
    """The setting of the honest run beside one with an attacker."""
    kept = [part for part in setting.split(", ") if not part.startswith(("malicious=", "share=", "defaults"))]
    place = next((n for n, part in enumerate(kept) if part.startswith(("rounds=", "rule="))), len(kept))
    return ", ".join([*kept[:place], "malicious=0.0", *kept[place:]])
