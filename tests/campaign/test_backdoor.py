"""A backdoor by one client of ten (LightSplit's Fig. 7, 9 and Table X, small): learnt or not, seen or not."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest
import torch

from cutlayer.data import Digits
from cutlayer.data.base import parts
from cutlayer.detectors import ConsensusCosine
from cutlayer.engines.local import LocalRun
from cutlayer.guards import Bottleneck1x1, LightSplit, NoGuard
from cutlayer.nets import LeNet
from cutlayer.partitions import Dirichlet
from cutlayer.plan import Plan
from cutlayer.poison import BadNets
from cutlayer.vigil import watched

pytestmark = pytest.mark.campaign
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "backdoor.json"
USUAL = {"threshold": 3.0, "sides": 2, "leave_one_out": False}  # as the paper has it, as far as it says
WATCH = {
    "output": ConsensusCosine(),
    "output, 3 sigma": ConsensusCosine(**USUAL),
    "input": ConsensusCosine(signature="input"),
    "input, 3 sigma": ConsensusCosine(signature="input", **USUAL),
}
PLAN = Plan(
    net=LeNet(), data=Digits(limit=1000), clients=10, epochs=30, batch=32, val=0.0, server_watch=tuple(WATCH.values())
)
IID, SKEWED = 1e7, 1.0
CELLS = [
    (LightSplit(ratio=16), IID, (0, 1, 2)),
    (NoGuard(), IID, (0, 1)),
    (Bottleneck1x1(ratio=16), IID, (0, 1)),
    (LightSplit(ratio=16), SKEWED, (0, 1)),
    (NoGuard(), SKEWED, (0,)),
]


def trained(guard, alpha, seed, poison):
    plan = replace(PLAN, guard=guard, partition=Dirichlet(alpha=alpha, minimum=8), poison=poison)
    plan = replace(plan, seed=seed, private_seed=seed + 77)
    loaded = plan.data.load()
    run = LocalRun(plan, parts(loaded, aux=0, val=0.0, seed=seed), classes=10)
    run.train()
    found = watched(run)
    return dict(zip(WATCH, found["server_watch"], strict=True)), found.get("poison")


def late(told, bad):
    """Of the last third of the rounds: the malicious client's |z|, how often it is flagged, and the mean F1."""
    rounds = told["course"][-len(told["course"]) // 3 :]
    flagged = [set(one["flagged"]) for one in rounds]
    return {
        "z": median(abs(one["z"][bad]) for one in rounds),
        "detected": mean(bad in one for one in flagged),
        "false": mean(bool(one - {bad}) for one in flagged),
        "f1": mean(2 * (bad in one) / (len(one) + 1) for one in flagged),
    }


def measured(guard, alpha, seed):
    clean, _ = trained(guard, alpha, seed, None)
    spoiled, poison = trained(guard, alpha, seed, BadNets())
    bad = poison["clients"][0]
    rows = {}
    for name in WATCH:
        told = spoiled[name]
        rows[name] = {
            "clean_rounds": clean[name]["rounds"],
            "clean_alarms": clean[name]["alarms"],
            "clean_suspects": clean[name]["suspects"],
            "threshold": told["threshold"],
            "first_hit": next((n for n, one in enumerate(told["course"]) if bad in one["flagged"]), None),
            "suspects": told["suspects"],
            "late": late(told, bad),
        }
    return {"guard": repr(guard), "alpha": alpha, "seed": seed, **poison, "watch": rows}


def summary(runs):
    """One row for each guard, spread and detector, over its seeds."""
    found = []
    for guard, alpha in dict.fromkeys((run["guard"], run["alpha"]) for run in runs):
        mine = [run for run in runs if (run["guard"], run["alpha"]) == (guard, alpha)]
        for name in WATCH:
            rows = [run["watch"][name] for run in mine]
            found.append(
                {
                    "guard": guard,
                    "alpha": alpha,
                    "detector": name,
                    "seeds": len(mine),
                    "success_rate": mean(run["success_rate"] for run in mine),
                    "clean_accuracy": mean(run["clean_accuracy"] for run in mine),
                    "clean_rounds": sum(row["clean_rounds"] for row in rows),
                    "clean_alarms": sum(row["clean_alarms"] for row in rows),
                    **{key: mean(row["late"][key] for row in rows) for key in ("z", "detected", "false", "f1")},
                }
            )
    return found


def record(runs):
    written = {"command": "make campaign", "plan": repr(PLAN), "poison": repr(BadNets())}
    EVIDENCE.write_text(json.dumps(written | {"rows": summary(runs), "runs": runs}, indent=1) + "\n")


def test_a_backdoor_is_seen_and_honest_rounds_are_left_alone():
    torch.set_num_threads(1)
    runs = []
    for guard, alpha, seeds in CELLS:
        for seed in seeds:
            runs.append(measured(guard, alpha, seed))
            record(runs)
    rows = {(row["guard"], row["alpha"], row["detector"]): row for row in summary(runs)}
    ours = rows[repr(LightSplit(ratio=16)), IID, "output"]
    assert ours["success_rate"] >= 0.5 and ours["clean_accuracy"] >= 0.85  # there is something to see
    working = [run for run in runs if run["alpha"] == IID and run["success_rate"] >= 0.5]
    assert len(working) >= 5 and all(run["watch"]["output"]["late"]["f1"] >= 0.8 for run in working)
    even = [row for (_, alpha, name), row in rows.items() if (alpha, name) == (IID, "output")]
    assert sum(row["clean_alarms"] for row in even) <= 0.02 * sum(row["clean_rounds"] for row in even)
