"""Entries for a GPU are listed everywhere, and left out where there is none."""

from dataclasses import replace

import pytest
import torch
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.fit import why_unfit
from cutlayer.bench import gpu_audit, gpu_stream
from cutlayer.bench import run as bench
from cutlayer.bench.gpu import ENTRIES, UNCOUNTED, alternate
from cutlayer.core.batch import Task
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LightSplit
from cutlayer.training.faster import AS_ALWAYS


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: cutlayer bench gpu measures it")
def test_they_are_listed_and_left_out_without_a_gpu():
    assert (ENTRIES | gpu_audit.ENTRIES | gpu_stream.ENTRIES).items() <= bench.ENTRIES.items()
    assert bench.run(["gpu.", "stream.gpu"], quick=True) == []


def test_a_training_and_the_plain_loop_have_their_epochs_by_turns():
    plan, turns = tiny_plan(epochs=UNCOUNTED + 2, batch_size=8), []
    run = LocalRun(plan, tiny_parts(24), classes=TASK.classes)
    mine, theirs = alternate(run, AS_ALWAYS, lambda: turns.append(run.progress.epoch))
    assert turns == [1, 2, 3, 4] and mine > 0 < theirs


# ------------------------------------------------------------------ gpu.audit, where there is none
def toy(*guards, images=8):
    plan = tiny_plan(epochs=1, batch_size=8, private_seed=None)
    attacks = [Decoder(steps=3, width=4, hidden=8)]
    return replace(gpu_audit.wanted(quick=True), plan=plan, guards=guards, attacks=attacks, images=images)


def toys():
    return Loaded(samples(120, 1), samples(30, 2), tuple(map(str, range(TASK.classes))))


def test_an_audit_is_timed_from_its_start_to_its_last_row():
    measured = gpu_audit.timed(toy(LightSplit(ratio=4)), toys(), "cpu")
    assert measured.value > 0 and measured.ratio == gpu_audit.SECONDS / measured.value
    assert "(2 rows)" in measured.baseline  # the open cut is one of them


def test_one_that_lacks_a_cell_is_no_measure():
    spec = replace(toy(), guards=(), optional_guards=(LightSplit(ratio=10_000),))
    with pytest.raises(RuntimeError, match="LightSplit"):
        gpu_audit.timed(spec, toys(), "cpu")


@pytest.mark.parametrize("guard", gpu_audit.GUARDS, ids=repr)
def test_its_guards_fit_its_network(guard):
    assert why_unfit(gpu_audit.wanted(quick=False).plan, Task((3, 32, 32), 10), guard) is None
