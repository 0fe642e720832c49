"""Detectors in long trainings: what honest servers and clients are accused of, and what a watch costs."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...core.spec import spec
from .base import DOES_NOT, HOLDS, PARTLY, Data, Earlier, Experiment, Figure, Finding, lost

PAPER = "Gradients Scrutinizer, SplitGuard (in FORA and SEAL)"


def _alarms(runs: Iterable[Any], column: str) -> dict[str, list[int]]:
    """By detector the false alarms and the steps watched, over all runs; one that stops watching counts until then."""
    told: dict[str, list[int]] = {}
    for run in runs:
        for one in run.get(column, ()):
            found = told.setdefault(one["detector"], [0, 0])
            found[0] += one["false_alarms"]
            found[1] += min(one["steps"], getattr(spec(one["detector"], "detectors"), "until", one["steps"]))
    return told


def _rate(name: str, alarms: int, steps: int) -> Figure:
    """Alarms a thousand steps. Of none the upper end is that of the rule of three: three in so many steps."""
    high = 3 if alarms == 0 else alarms + 2 * alarms**0.5
    low = max(0.0, alarms - 2 * alarms**0.5)
    rate, low, high = (1000 * one / steps for one in (alarms, low, high))
    return Figure(f"{name}: false alarms a 1,000 steps, of {steps:,} watched", rate, low, high, paper=0.0)


def _quiet(runs: Sequence[Any], column: str, cost: Data | None = None) -> Finding:
    told = _alarms(runs, column)
    figures = [_rate(name, *counted) for name, counted in told.items()]
    loud = [name for name, (alarms, _) in told.items() if alarms]
    if cost is not None:
        figures.append(lost(cost, "plan", "client_detectors=SplitGuard()", "points that SplitGuard costs"))
    verdict = HOLDS if not loud else PARTLY if len(loud) < len(told) else DOES_NOT
    why = f"{len(told) - len(loud)} of {len(told)} detectors accuse no honest server" + (
        f"; {' and '.join(loud)} do." if loud else "."
    )
    if brief := [name for name in told if hasattr(spec(name, "detectors"), "until")]:
        why += f" {' and '.join(brief)} {'watches' if len(brief) == 1 else 'watch'} the first batches alone."
    return Finding(verdict, why, tuple(figures))


def _honest(data: Any) -> Any:
    """The runs under an honest server, whatever else the file has."""
    return {name: runs for name, runs in data.items() if name != "command" and not name.startswith("disguised")}


_DETECTORS = "--client-detectors 'GradientScrutinizer()' --client-detectors 'SplitGuard()' --client-detectors 'OutlierGradients()'"
_NET = "--net 'ResNet18(depth=2)' --data CIFAR10 --protocol Vanilla --epochs 60 --batch-size 64"
_MINUTES = "--net 'ResNet18(depth=2)' --data 'CIFAR10(batches=(1, 2))' --protocol Vanilla --batch-size 64"
EXPERIMENTS = (
    Experiment(
        "detectors-honest", PAPER, "Clients' detectors leave an honest server alone, however long it trains.",
        "no false alarm in the papers' runs",
        {
            "honest": f"audit {_NET} --aux-samples 5000 {_DETECTORS} --attack 'Decoder(steps=100)' --seeds 3 --no-alone --device cuda",
            "cost": f"compare {_NET} --with plan --with 'client_detectors=SplitGuard()' --seeds 3 --no-alone --device cuda",
        },
        lambda results: _quiet(results["honest"]["rows"], "detectors_honest", results.get("cost")),
        {"honest": f"audit --data Fashion --protocol Vanilla --epochs 40 {_DETECTORS} --attack \"Decoder(readers=('ridge',))\" --images 32 --seeds 2 --no-alone", "cost": "compare --data Fashion --protocol Vanilla --epochs 10 --with plan --with 'client_detectors=SplitGuard()' --seeds 3 --no-alone"},
        medium={
            "honest": f"audit {_MINUTES} --epochs 30 --aux-samples 5000 {_DETECTORS} --attack 'Decoder(steps=100)' --tries 1 --seeds 3 --no-alone --device cuda",
        },
        earlier=(Earlier("watchdogs.json", lambda data: _quiet([run for runs in data.values() for run in runs], "honest"), _honest),),
    ),
)  # fmt: skip
