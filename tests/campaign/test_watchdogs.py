"""Detectors at their default settings on real images: silent in honest training, and in time when FSHA trains."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cutlayer.attacks import FSHA
from cutlayer.data import CIFAR10
from cutlayer.data.base import parts
from cutlayer.detectors import GradientScrutinizer, OutlierGradients, SplitGuard
from cutlayer.drill import Drill
from cutlayer.engines.local import LocalRun
from cutlayer.judge import Victim, hijack, judge
from cutlayer.metrics import scores
from cutlayer.nets import MnistNet, ResNet18, SimpleCNN
from cutlayer.optimizers import Adam
from cutlayer.plan import Plan
from cutlayer.seeds import generator
from cutlayer.split import UShaped, Vanilla
from cutlayer.worker import task_of

pytestmark = pytest.mark.campaign
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
WATCH = (GradientScrutinizer(), SplitGuard(), OutlierGradients())
SEEDS = range(5)
IMAGES = 128
EPOCHS = 6


LONG = 40  # epochs of digits, about 2,000 steps
DISGUISES = [(0.0, 0), (0.5, 0), (0.7, 0), (0.7, 200), (0.8, 200)]  # evade, joins
PHOTOS = Plan(
    net=ResNet18(depth=2),
    data=CIFAR10(batches=(1, 2)),
    epochs=20,
    client_optimizer=Adam(lr=1e-3),
    server_optimizer=Adam(lr=1e-3),
)


def watched(net, protocol, seed, epochs=EPOCHS):
    plan = Plan(net=net, protocol=protocol, epochs=epochs, aux=1000, seed=seed, private_seed=seed, watch=WATCH)
    return plan, parts(plan.data.load(), aux=plan.aux, val=plan.val, seed=seed)


def photos(protocol, seed, data_dir=None):
    plan = replace(PHOTOS, protocol=protocol, aux=5000, seed=seed, private_seed=seed, watch=WATCH)
    return plan, parts(plan.data.load(data_dir), aux=plan.aux, val=plan.val, seed=seed)


def honest(plan, data, device="cpu"):
    """A whole training with an honest server: alarms, and each detector's scores over time."""
    run = LocalRun(plan, data, classes=10, device=device)
    drill = Drill(run)
    run.train(on_step=lambda progress: drill())
    told = run.workers[0].lookout.report()
    courses = {one["detector"]: one["scores"][:: max(1, len(one["scores"]) // 50)] for one in told}
    return {"plan": repr(plan), "accuracy": run.history[-1]["val"], "honest": drill.honest(), "scores": courses}


def hijacked(attack, plan, data, device="cpu"):
    """A training with a hijacker, to its end: who noticed, and what it could read in spite of that."""
    plan = replace(plan, epochs=1)
    found = hijack(attack, plan, data, task_of(data.private, 10), plan.seed, device=device, images=IMAGES)
    row, _ = judge(attack, Victim(found.run, IMAGES), data, plan.seed, attacker=found.attacker)
    end = {name: row[name] for name in ("ssim", "ncc", "psnr")}
    return {
        "plan": repr(plan),
        "attack": repr(attack),
        "steps": found.run.step,
        "accuracy": found.run.history[-1]["val"],
        "class_mean": class_mean(plan, data),
        "watched": found.drill.attacked(),
        "end": end,
    }


def class_mean(plan, data):
    """What the mean auxiliary image of the right class scores on the samples that are judged at an alarm."""
    pick = torch.randperm(len(data.private), generator=generator(plan.seed))[:IMAGES]
    aux = data.aux.images()
    means = torch.stack([aux[data.aux.y == label].mean(0) for label in range(10)])
    found = scores(data.private.images(pick), means[data.private.y[pick]])
    return {"ssim": found["ssim"], "ncc": found["ncc"]}


@pytest.mark.parametrize("net", [MnistNet(), SimpleCNN()], ids=["MnistNet", "SimpleCNN"])
@pytest.mark.parametrize("protocol", [Vanilla, UShaped])
def test_no_alarm_in_honest_training_and_fsha_is_stopped_in_time(net, protocol):
    torch.set_num_threads(1)
    cells = []
    for seed in SEEDS:
        plan, data = watched(net, protocol, seed)
        run = LocalRun(plan, data, classes=10)
        drill = Drill(run)
        run.train(on_step=lambda progress, drill=drill: drill())
        found = hijack(
            FSHA(steps=300), replace(plan, epochs=1), data, task_of(data.private, 10), seed, images=IMAGES,
            stop=lambda drill: drill.all_sounded,
        )  # fmt: skip
        cells.append(
            {
                "seed": seed,
                "accuracy": run.history[-1]["val"],
                "honest": drill.honest(),
                "class_mean": class_mean(plan, data),
                "fsha": found.drill.attacked(),
            }
        )
        record(f"{type(net).__name__}, {protocol.__name__}", plan, cells)
    for cell in cells:
        assert all(row["false_alarms"] == 0 for row in cell["honest"])
        assert all(row["detected"] for row in cell["fsha"])
        floor = cell["class_mean"]
        in_time = [row for row in cell["fsha"] if row["ssim"] < floor["ssim"] and row["ncc"] < floor["ncc"]]
        assert in_time, cell


def record(name, plan, cells):
    """Beside what the others found, after every seed; what missed its bar is written down too."""
    path = EVIDENCE / "watchdogs.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    command = "python -m pytest -m campaign tests/campaign/test_watchdogs.py"
    found[name] = {"command": command, "plan": repr(plan), "attack": repr(FSHA(steps=300)), "cells": cells}
    path.write_text(json.dumps(found, indent=1) + "\n")
    (EVIDENCE / "watchdogs.md").write_text(table(found))


def table(found):
    lines = [
        "# Detectors in honest training and under FSHA",
        "",
        "Made by `python -m pytest -m campaign tests/campaign/test_watchdogs.py` (one thread). MNIST-5000, Adam on",
        f"both sides, batches of 64, default settings. Honest: {EPOCHS} epochs a seed. Under FSHA detectors stop",
        "nobody, so that each has its first alarm; SSIM and NCC are what the attacker's pictures of 128 private",
        "images are worth at that step (mean over seeds, the largest in brackets), beside the class-mean image of",
        "the auxiliary data.",
        "",
        "| network, protocol | detector | honest steps | false alarms per 1,000 | lowest honest score "
        "| delay in steps | SSIM at the alarm | NCC at the alarm | class mean SSIM, NCC |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in found.items():
        cells = entry["cells"]
        for place in range(len(WATCH)):
            honest = [cell["honest"][place] for cell in cells]
            evil = [cell["fsha"][place] for cell in cells]
            steps, alarms = (sum(row[key] for row in honest) for key in ("steps", "false_alarms"))
            caught = [row for row in evil if row["detected"]]
            delays = [row["delay"] for row in caught]
            floor = [sum(cell["class_mean"][key] for cell in cells) / len(cells) for key in ("ssim", "ncc")]
            shown = f"{min(delays)} to {max(delays)}" if delays else "never"
            missed = f" ({len(evil) - len(caught)} missed)" if len(caught) < len(evil) else ""
            lines.append(
                f"| {name} | `{honest[0]['detector']}` | {steps} | {1000 * alarms / steps:.1f} | "
                f"{min(row['lowest'] for row in honest):.3f} | {shown}{missed} | {_spread(caught, 'ssim')} | "
                f"{_spread(caught, 'ncc')} | {floor[0]:.3f}, {floor[1]:.3f} |"
            )
    return "\n".join([*lines, ""])


def _spread(rows, name):
    values = [row[name] for row in rows]
    return f"{sum(values) / len(values):.3f} ({max(values):.3f})" if values else ""
