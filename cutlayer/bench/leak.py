"""What a client pays to know what it leaks."""

import time
from collections.abc import Callable

from ..core.batch import Task
from ..detectors import LeakMeter
from ..engines.local.run import LocalRun
from ..training.plan.plan import Plan
from .measurement import Measured
from .parties import synthetic


def leakmeter(quick: bool) -> Measured:
    """CPU time of LeakMeter against what it may take (20 s, or a tenth of the training): SimpleCNN, 28x28."""
    return _leakmeter(12 if quick else 450, LeakMeter(every=6, samples=64, steps=8) if quick else LeakMeter())


def _leakmeter(steps: int, meter: LeakMeter) -> Measured:
    task = Task((1, 28, 28), 10)
    plan = Plan(client_detectors=(meter,), epochs=1, val_share=0.0, private_seed=1)
    run = LocalRun(plan, synthetic(plan, task, steps), classes=task.classes)
    began = time.process_time()
    run.clients[0].learn(0, 0, steps)
    run.clients[0].detection.finish()
    whole = time.process_time() - began
    (report,) = run.clients[0].detection.report()
    training = whole - report["cpu_seconds"]
    allowed = max(20.0, training / 10)
    baseline = f"what it may take: {allowed:.0f} CPU-s, training took {training:.0f}"
    return Measured(report["cpu_seconds"], "CPU-s", allowed / report["cpu_seconds"], baseline, ">= 1.0")


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {"leakmeter": leakmeter}
