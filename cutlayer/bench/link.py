"""Benchmarks of a slow link: what compression is worth on it, and whether its forecast holds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ..core.batch import Task
from ..core.compressor import Compression
from ..engines.local.run import LocalRun
from ..guards import Chain, LightSplit, Quantize
from ..nets.mlp import MLP
from ..nets.simple_cnn import SimpleCNN
from ..training.facts.forecast import Stopwatch, forecast
from ..training.facts.link import Link
from ..training.plan.plan import Plan
from ..training.protocols import Vanilla
from .deploy import FEWEST, SLOW, installed, plan_of, rounds_of
from .measurement import Measured
from .parties import Away, scratch, synthetic

IMAGES = Task((1, 28, 28), 10)
ROW = Task((784,), 10)


def squeezed(plan: Plan) -> Plan:
    """The plan with an eighth of the width and four bits a number on the way up, four bits in the other messages."""
    return replace(
        plan,
        guard=Chain(LightSplit(ratio=8), Quantize(bits=4)),
        compression=Compression(Quantize(bits=4), Quantize(bits=4, rounding="stochastic")),
    )


def link_20mbit(quick: bool) -> Measured | None:
    """A step over 20 Mbit/s and 20 ms as raw floats, against LightSplit(8) and four bits in all four messages."""
    return _worth(2 if quick else 12, Link(rate=20e6, rtt=0.020))


def link_model(quick: bool) -> Measured | None:
    """What `--link 20mbit,40ms` foretells of a step, against that step over such a link: the worst of four plans."""
    return _model(2 if quick else 12, SLOW)


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {"link.20mbit": link_20mbit, "link.model": link_model}


def _worth(rounds: int, link: Link) -> Measured | None:
    if not installed():
        return None
    raw, steps = plan_of(SimpleCNN(depth=2)), rounds + FEWEST + 1
    with scratch() as folder:
        plans = {"raw": raw, "squeezed": squeezed(raw)}
        parties = [Away(plan, IMAGES, steps, folder / name, link=link) for name, plan in plans.items()]
        plain, ours = rounds_of([party.step for party in parties], rounds)
        bytes_of = _ended(parties)
    return Measured(
        1e3 * ours,
        f"ms a step; {bytes_of[0] / bytes_of[1]:.1f} times fewer bytes",
        plain / ours,
        "raw floats over the same link",
        ">= 5",
    )


def _model(rounds: int, link: Link) -> Measured | None:
    """Plans in which different things dominate: bytes each way, round trips, labels that travel, pieces in flight."""
    if not installed():
        return None
    wide = plan_of(MLP(widths=(1024, 1024)))
    plans = {
        "raw floats": (wide, ROW),
        "labels travel": (replace(wide, protocol=Vanilla()), ROW),
        "in four pieces": (replace(wide, micro_batches=4), ROW),
        "compressed": (squeezed(plan_of(SimpleCNN(depth=2))), IMAGES),
    }
    ratios = {}
    with scratch() as folder:
        for number, (name, (plan, task)) in enumerate(plans.items()):
            measured, foretold = _both(plan, task, rounds, link, folder / str(number))
            ratios[name] = foretold / measured
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return Measured(
        100 * abs(ratios[worst] - 1),
        f"% off at worst (foretold / measured: {shown})",
        ratios[worst],
        "the time measured over the shaped link",
        "0.87 to 1.15",
    )


def _both(plan: Plan, task: Task, rounds: int, link: Link, folder: Path) -> tuple[float, float]:
    """Seconds of a step over the link, and what is foretold from a run in this process, step by step in turn."""
    steps = rounds + FEWEST + 1
    watch = Stopwatch()
    here = LocalRun(plan, synthetic(plan, task, steps), classes=task.classes, at_server=[watch])
    away = Away(plan, task, steps, folder, link=link)
    measured: list[float] = []
    inside = 0.0
    for place in range(FEWEST + rounds):
        if place == FEWEST:
            watch.restart()
            measured, inside = [], 0.0
        measured.append(away.step())
        began = time.perf_counter()
        here.clients[0].learn(0, place, place + 1)
        inside += time.perf_counter() - began
    _ended([away])
    told = forecast(link, here.ledger, watch, seconds=inside, steps=FEWEST + rounds, per_epoch=1)
    assert told is not None
    return median(measured), told["seconds per step"]


def _ended(parties: Sequence[Away]) -> list[int]:
    """Let the runs go to their ends; returns the bytes of all their frames."""
    for party in parties:
        party.end()
        assert party.relay is not None
        party.relay.close()
    return [party.frames for party in parties]
