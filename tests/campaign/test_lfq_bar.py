"""LFQ beside Top-S and FedLite on real digits, two labels a client: accuracy beside bytes, and its bar."""

import json
import runpy
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import mean

import pytest
import torch

from cutlayer.core.message import Kind, Message
from cutlayer.data.base import parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.wire import frames

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).parents[2]
SEEDS = (0, 1, 2)


def measured(plan, loaded, seed):
    """One run: the accuracy of its best epoch, and the bytes a training sample took on its way up."""
    z = Counter()

    def weigh(message, handle):
        if message.kind is Kind.LOSS:  # z in a frame of its own: labels cost the same under every guard
            alone = Message(message.kind, message.client, message.step, {"z": message["z"]}, message.packed)
            z["bytes"] += frames.size(alone)
        return handle(message)

    plan = replace(plan, seed=seed, private_seed=seed + 77)
    run = LocalRun(plan, parts(loaded, aux=0, val=plan.val_share, seed=seed), classes=10, at_server=[weigh])
    run.train()
    run.use_best()
    samples = run.ledger.samples["training"]
    lift = {way: run.ledger.bytes["LIFT", way] / samples for way in ("up", "down")}
    raw = 4 * prod(cut_shapes(plan, run.task).z)
    up = z["bytes"] / samples
    return {
        "accuracy": run.carrier.evaluate("test")[0],
        "z": up,
        "decoder_up": lift["up"],
        "decoder_down": lift["down"],
        "dz": run.ledger.bytes["BACKWARD", "down"] / samples,
        "ratio": raw / (up + lift["up"]),
    }


def test_lfq_at_four_hundred_times_fewer_bytes():
    torch.set_num_threads(1)
    recipes = runpy.run_path(str(ROOT / "recipes" / "lfq.py"))
    plans = {name: recipe() for name, recipe in recipes.items() if name.startswith("digits")}
    loaded = plans["digits"].data.load()
    rows = []
    for name, plan in plans.items():
        runs = [measured(plan, loaded, seed) for seed in SEEDS]
        row = {"recipe": name, "guard": repr(plan.guard), "accuracies": [run["accuracy"] for run in runs]}
        rows.append(row | {key: round(mean(run[key] for run in runs), 4) for key in runs[0]})
    written = {"command": "make campaign", "plan": repr(plans["digits"]), "seeds": list(SEEDS), "rows": rows}
    (ROOT / "docs" / "evidence" / "lfq.json").write_text(json.dumps(written, indent=1) + "\n")
    by_name = {row["recipe"]: row for row in rows}
    ours = by_name["digits_lfq"]
    assert ours["ratio"] >= 400
    assert ours["accuracy"] >= by_name["digits"]["accuracy"] - 0.04
    for other in ("digits_top_2", "digits_top_3", "digits_fedlite"):
        assert ours["accuracy"] > by_name[other]["accuracy"]
