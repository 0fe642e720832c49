"""Tune against a full grid on digits: within 0.02 SSIM and a point of its best, in a quarter of its time.

Settings, and what is best (`Budget.used`, the same for search and grid), were fixed before any of these seeds was
run. Of the grid that is the plain minimum, of the search whatever it chooses. Both choices are trained and attacked
again under seeds that neither has seen: the best of 29 points, each trained once, is partly the luckiest. Time is CPU
time of one thread, so other work on the machine hardly changes it; the unguarded cut of the search's own seed, which
both need, is counted on neither side.

Rows are kept in runs/tune-grid as they come, so a test that was stopped goes on.
"""

import json
import os
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

import pytest
import torch

from cutlayer.attacks import Decoder
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.store import ResultStore
from cutlayer.audit.tune.budget import Budget
from cutlayer.audit.tune.front import chosen, meets
from cutlayer.audit.tune.run import REFERENCE, Here, search
from cutlayer.audit.tune.space import kinds
from cutlayer.audit.tune.study import Study
from cutlayer.audit.tune.trial import Reference, Tried, TuneWork, attempt, finish, readings, reference
from cutlayer.core.spec import spec as read_spec
from cutlayer.data import Digits
from cutlayer.nets import MnistNet
from cutlayer.training.plan.lr_schedules import Cosine
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.plan import Plan

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence/tune.json"
KINDS = ("LightSplit", "Quantize", "TopK", "Noise", "NoPeek", "Gate")
POINTS = 4  # of the grid along a setting; 3 where a guard has two
BUDGET = Budget(leak=0.6, loss=6)
TRIALS = 10
OPEN = Budget(leak=1.0, loss=100)  # nothing is ruled out
SEEDS = (21, 22, 23)
FRESH = (201, 202, 203)  # of neither search nor grid
SSIM, POINT, TIME = 0.02, 0.01, 0.25  # the bar


def digits(budget, seed):
    """1,125 images are trained on for 8 epochs with a falling rate, 1,375 validate: so trained, the unguarded cut and
    the guards that keep its accuracy differ by a point from seed to seed, where 48 steps differed by ten."""
    fast = Adam(lr=3e-3)
    plan = Plan(
        net=MnistNet(), data=Digits(limit=3000), epochs=8, batch_size=32, aux_samples=500, val_share=0.55, seed=seed,
        schedule=Cosine(), client_optimizer=fast, server_optimizer=fast,
    )  # fmt: skip
    spec = AuditSpec(plan, (), readings([Decoder.sized("quick")]), seeds=(seed,), images=64, alone=False)
    return TuneWork(spec, plan.data.load(), budget)


def grid():
    for kind in kinds(KINDS):
        names, spaces = zip(*kind.space, strict=True)
        for values in product(*(one.along(POINTS if len(spaces) == 1 else 3) for one in spaces)):
            yield replace(kind.plain, **dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("seed", SEEDS)
def test_tune_comes_near_the_best_of_a_grid_in_a_quarter_of_its_time(seed):
    torch.set_num_threads(1)
    found, rows = _searched(seed), [_read_by_all(guard, seed) for guard in grid()]
    run = {"seed": seed, "open_cut": _open_cut(seed).accuracy, "tune": found["tried"]}
    run["grid"] = [row["tried"] for row in rows]
    run["cpu_seconds"] = {"tune": round(found["cpu"], 1), "grid": round(sum(row["cpu"] for row in rows), 1)}
    run["chosen"] = {"tune": chosen(_tried(run["tune"]), BUDGET)[0].guard, "grid": _best(run["grid"])}
    run["meeting"] = {name: sum(meets(one, BUDGET) for one in _tried(run[name])) for name in ("tune", "grid")}
    run["fresh"] = {name: _afresh(guard) for name, guard in run["chosen"].items()}
    _record(run)
    assert run["cpu_seconds"]["tune"] <= TIME * run["cpu_seconds"]["grid"], run["cpu_seconds"]
    ours, best = (run["fresh"][name] for name in ("tune", "grid"))
    assert ours["ssim"] <= best["ssim"] + SSIM, run["chosen"]
    assert ours["accuracy"] >= best["accuracy"] - POINT, run["chosen"]


def _best(rows):
    """As each was found in its one training."""
    meeting = [one for one in _tried(rows) if meets(one, BUDGET)]
    return min(meeting, key=lambda one: BUDGET.used(one._asdict())).guard


def _searched(seed):
    def make():
        work, store = digits(BUDGET, seed), ResultStore()
        store.put(REFERENCE, _open_cut(seed)._asdict())
        _ = work.open_cut.facts  # some guards are fitted to it: trained on neither side's time
        began = time.process_time()
        study = Study(kinds(KINDS), chains=False, budget=BUDGET, seed=seed)
        found = search(work, study, store, Here(work), TRIALS, lambda shown: None, print)
        return {"tried": [one._asdict() for one in found.tried], "cpu": time.process_time() - began}

    return _kept(f"tune {seed}", make)


def _afresh(guard):
    """A choice under seeds that nobody chose by: means, and each."""
    rows = [_read_by_all(read_spec(guard, "guards"), seed)["tried"] for seed in FRESH]
    each = {name: [row[name] for row in rows] for name in ("ssim", "accuracy", "leak", "loss")}
    means = {name: mean(values) for name, values in each.items()}
    return {**means, "used": BUDGET.used(means), "seeds": list(FRESH), "each": each}


def _read_by_all(guard, seed):
    """Trained and read by a linear reader and the full attack: a grid has no use for a reader between."""

    def make():
        open_cut, work = _open_cut(seed), _roomy(seed)
        began = time.process_time()
        found = finish(work, guard, open_cut, attempt(work, guard, open_cut))
        return {"tried": found._asdict(), "cpu": time.process_time() - began}

    return _kept(f"{guard!r} {seed}", make)


def _roomy(seed, made={}):  # noqa: B006
    if seed not in made:
        work = digits(OPEN, seed)
        linear, _, full = work.spec.attacks
        made[seed] = replace(work, spec=replace(work.spec, attacks=(linear, full)))
        _ = made[seed].open_cut.facts
    return made[seed]


def _open_cut(seed):
    return Reference(**_kept(f"open cut {seed}", lambda: reference(digits(OPEN, seed))._asdict()))


def _kept(name, make):
    """From a run that was stopped, or made now."""
    store = ResultStore(Path(os.environ.get("TUNE_GRID", ROOT / "runs/tune-grid")) / "cells", "tune against a grid")
    if store.get(name) is None:
        store.put(name, make())
    return store.get(name)[0]


def _tried(rows):
    return [Tried(**row) for row in rows]


def _record(run):
    before = json.loads(EVIDENCE.read_text())["runs"] if EVIDENCE.exists() else []
    runs = {one["seed"]: one for one in [*before, run]}
    data = {
        "command": "python -m pytest -m campaign tests/campaign/test_tune_grid.py",
        "budget": BUDGET.limits(),
        "trials": TRIALS,
        "runs": [runs[one] for one in sorted(runs)],
    }
    EVIDENCE.write_text(json.dumps(data, indent=1) + "\n")


pytestmark = pytest.mark.campaign
