"""Trainings that detectors watch: with an honest server to the end, and with a hijacker, disguised or not."""

from dataclasses import replace

import torch

from cutlayer.audit.detector_trial import DetectorTrial
from cutlayer.audit.hijack import Training, hijack
from cutlayer.audit.judge import judge
from cutlayer.audit.victim import Victim
from cutlayer.core.seeds import generator
from cutlayer.data import CIFAR10, Digits
from cutlayer.data.base import parts
from cutlayer.detectors import GradientScrutinizer, OutlierGradients, SplitGuard
from cutlayer.engines.local.run import LocalRun
from cutlayer.metrics.images import scores
from cutlayer.nets import ResNet18
from cutlayer.training.batches import task_of
from cutlayer.training.plan.plan import Plan

WATCH = (GradientScrutinizer(), SplitGuard(), OutlierGradients())
IMAGES = 128


def digits(net, protocol, seed, epochs):
    plan = Plan(
        net=net,
        data=Digits(),
        protocol=protocol,
        epochs=epochs,
        aux_samples=1000,
        seed=seed,
        private_seed=seed,
        client_detectors=WATCH,
    )
    return plan, parts(plan.data.load(), aux=plan.aux_samples, val=plan.val_share, seed=seed)


def photos(protocol, seed, epochs, data_dir=None):
    source = CIFAR10(batches=(1, 2))
    plan = Plan(
        net=ResNet18(depth=2), data=source, protocol=protocol, epochs=epochs, aux_samples=5000, client_detectors=WATCH
    )
    plan = replace(plan, seed=seed, private_seed=seed)
    return plan, parts(plan.data.load(data_dir), aux=plan.aux_samples, val=plan.val_share, seed=seed)


def honest(plan, data, device="cpu"):
    """A whole training with an honest server: alarms, and each detector's scores over time."""
    run = LocalRun(plan, data, classes=10, device=device)
    trial = DetectorTrial(run)
    run.train(on_step=lambda progress: trial())
    told = run.clients[0].detection.report()
    courses = {one["detector"]: one["scores"][:: max(1, len(one["scores"]) // 50)] for one in told}
    return {
        "plan": repr(plan),
        "accuracy": run.progress.history[-1]["val"],
        "honest": trial.honest(),
        "scores": courses,
    }


def hijacked(attack, plan, data, device="cpu"):
    """A training with a hijacker, to its end: who noticed, and what it could read in spite of that."""
    plan = replace(plan, epochs=1)
    found = hijack(attack, Training(plan, data, task_of(data.private, 10), device), images=IMAGES)
    row, _ = judge(attack, Victim(found.run, IMAGES), data, plan.seed, attacker=found.attacker)
    return {
        "plan": repr(plan),
        "attack": repr(attack),
        "steps": found.run.progress.step,
        "accuracy": found.run.progress.history[-1]["val"],
        "class_mean": class_mean(plan, data),
        "watched": found.trial.attacked(),
        "end": {name: row[name] for name in ("ssim", "ncc", "psnr")},
    }


def class_mean(plan, data):
    """What the mean auxiliary image of the right class scores on the samples that are judged at an alarm."""
    pick = torch.randperm(len(data.private), generator=generator(plan.seed))[:IMAGES]
    aux = data.aux.images()
    means = torch.stack([aux[data.aux.y == label].mean(0) for label in range(10)])
    found = scores(data.private.images(pick), means[data.private.y[pick]])
    return {"ssim": found["ssim"], "ncc": found["ncc"]}
