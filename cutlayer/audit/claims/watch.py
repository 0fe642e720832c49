"""Detectors in long trainings: what honest servers and clients are accused of, and what a watch costs."""

from collections.abc import Mapping
from typing import Any

from .base import DOES_NOT, HOLDS, PARTLY, Data, Earlier, Experiment, Finding, lost, over_seeds

PAPER = "Gradients Scrutinizer, SplitGuard (in FORA and SEAL)"


def _quiet(results: Mapping[str, Data]) -> Finding:
    """False alarms a thousand steps of honest training, over all detectors and seeds."""
    told: dict[str, list[float]] = {}
    for row in results["honest"]["rows"]:
        for one in row.get("detectors_honest", ()):
            told.setdefault(one["detector"], []).append(one["false_alarms_per_1000"])
    figures = [over_seeds(f"{name}: false alarms a 1,000 steps", rates, 0.0) for name, rates in told.items()]
    loud = [one.what.partition(":")[0] for one in figures if one.ours > 0]
    if "cost" in results:
        figures.append(lost(results["cost"], "plan", "client_detectors=SplitGuard()", "points that SplitGuard costs"))
    verdict = HOLDS if not loud else PARTLY if len(loud) < len(told) else DOES_NOT
    why = f"{len(told) - len(loud)} of {len(told)} detectors accuse no honest server" + (
        f"; {' and '.join(loud)} do." if loud else "."
    )
    return Finding(verdict, why, tuple(figures))


def _quiet_before(data: Any) -> Finding:
    told: dict[str, list[float]] = {}
    for name, runs in data.items():
        if name != "command" and not name.startswith("disguised"):
            for run in runs:
                for one in run.get("honest", ()):
                    told.setdefault(one["detector"], []).append(one["false_alarms_per_1000"])
    figures = [over_seeds(f"{name}: false alarms a 1,000 steps", rates, 0.0) for name, rates in told.items()]
    loud = [one.what.partition(":")[0] for one in figures if one.ours > 0]
    verdict = HOLDS if not loud else PARTLY if len(loud) < len(told) else DOES_NOT
    why = f"On digits {len(told) - len(loud)} of {len(told)} detectors accuse no honest server" + (
        f"; {' and '.join(loud)} do." if loud else "."
    )
    return Finding(verdict, why, tuple(figures))


_DETECTORS = "--client-detectors 'GradientScrutinizer()' --client-detectors 'SplitGuard()' --client-detectors 'OutlierGradients()'"
_NET = "--net 'ResNet18(depth=2)' --data CIFAR10 --protocol Vanilla --epochs 60 --batch-size 64"
EXPERIMENTS = (
    Experiment(
        "detectors-honest", PAPER, "Clients' detectors leave an honest server alone, however long it trains.",
        "no false alarm in the papers' runs",
        {
            "honest": f"audit {_NET} --aux-samples 5000 {_DETECTORS} --attack 'Decoder(steps=100)' --seeds 3 --no-alone --device cuda",
            "cost": f"compare {_NET} --with plan --with 'client_detectors=SplitGuard()' --seeds 3 --no-alone --device cuda",
        },
        _quiet,
        {"honest": f"audit --data Fashion --protocol Vanilla --epochs 40 {_DETECTORS} --attack \"Decoder(readers=('ridge',))\" --images 32 --seeds 2 --no-alone", "cost": "compare --data Fashion --protocol Vanilla --epochs 10 --with plan --with 'client_detectors=SplitGuard()' --seeds 3 --no-alone"},
        earlier=(Earlier("watchdogs.json", _quiet_before),),
    ),
)  # fmt: skip
