"""Every recipe builds and learns for a few steps, from small files in the layouts its data are published in."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import layouts
import numpy as np
import pytest
import torch
from test_recipes import RECIPES, plan_of

from cutlayer.data import COCO, VOC, ImageNet
from cutlayer.data.base import Loaded, Source, parts
from cutlayer.data.partitions import IID, ByIdentity
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.batches import task_of
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import SendOnce
from cutlayer.training.plan.shapes import cut_shapes

torch.set_num_threads(1)
# Tens of millions of weights are made and moved in each of these, which takes seconds: in the campaign alone.
HUGE = ("VGG16(", "ResNet50(wide=True")
LARGE = ("ResNet", "MobileNet", "DeepLab", "VGG", "TextEncoder(layers=6")  # tenths of a second each: every twelfth


def small(plan: Plan) -> Plan:
    """The plan for a dozen samples: what a recipe says of how long, on how much and by how many is left out."""
    batch = max(6, 2 * plan.guard.least_batch)
    data = replace(plan.data, limit=None)  # type: ignore[type-var]
    once = isinstance(plan.roles, SendOnce)
    return replace(
        plan,
        data=replace(data, size=32) if getattr(data, "size", 0) in (224, 513) else data,
        clients=min(plan.clients, 2),
        guarded_clients=plan.guarded_clients and min(plan.guarded_clients, 2),
        partition=plan.partition if isinstance(plan.partition, ByIdentity) else IID(),
        roles=SendOnce(home=1, split=0) if once else plan.roles,
        epochs=3 if once else 1,
        batch_size=batch,
        patience=0,
        val_share=0.0,
        aux_samples=0,
        private_seed=1,
    )


SMALL: dict[str, tuple[str, Plan]] = {}  # recipes that differ in numbers that are left out are one
for name in RECIPES:
    SMALL.setdefault(repr(plan := small(plan_of(name))), (name, plan))


def named(large: bool) -> list[object]:
    kinds = [(name, repr(plan.net)) for name, plan in SMALL.values()]
    return [
        pytest.param(name, marks=pytest.mark.campaign) if net.startswith(HUGE) else name
        for name, net in kinds
        if net.startswith(LARGE) == large
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All sets, and room for a picture or two in memory: what can be read from disk batch by batch is."""
    root = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MEMORY, "20KB")
        patch.setenv(DECODERS, "0")
        layouts.write_all(root, patch)
        yield root


@cache
def loaded(source: Source, folder: Path) -> Loaded:
    return source.load(folder)


def weights(run: LocalRun) -> dict[str, torch.Tensor]:
    """By their names without whose they are: merged, a client's become everybody's."""
    return {key.partition("/")[2]: tensor.clone() for key, tensor in run.tensors().items()}


def learns(name: str, folder: Path) -> None:
    plan = small(plan_of(name))
    every = loaded(plan.data, folder)
    rows = torch.arange(2 * plan.batch_size)
    few = replace(every, train=every.train[rows[: len(every.train)]], test=every.test[rows[: len(every.test)]])
    run = LocalRun(plan, parts(few, aux=0, val=0.0, seed=0), classes=len(few.classes))
    before = weights(run)
    assert run.train() and run.progress.step > 0
    assert all(np.isfinite(epoch["task"]) for epoch in run.progress.history if "task" in epoch)
    assert any(not torch.equal(tensor, before.get(key, tensor)) for key, tensor in weights(run).items())
    if isinstance(plan.data, (ImageNet, COCO, VOC)):
        assert every.train.on_disk, "too large for memory, so it is decoded batch by batch"
        assert 0 <= run.evaluate(run.parts.test)[0] <= 1
        assert (run.clients[0].scored.confusion is None) == isinstance(plan.data, ImageNet)


@pytest.mark.parametrize("name", named(large=False))
def test_a_recipe_learns_for_a_few_steps(name, folder):
    learns(name, folder)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", named(large=True))
def test_a_recipe_with_a_large_network_learns_for_a_few_steps(name, folder):
    learns(name, folder)


def test_lfq_reads_the_pictures_of_celeba_as_they_are(folder):
    """D = 13,440, printed as 13,400, and near the thesis' rates once the decoder is left out of them."""
    for name, ratio in {"lfq_4": 274.83, "lfq_4_small": 1031.26, "lfq_4_smallest": 1132.26}.items():
        plan = plan_of(f"faces.py:{name}")
        z = cut_shapes(plan, task_of(loaded(plan.data, folder).train, 2)).z
        assert z == (80, 14, 12)
        decoder = 71  # bits a sample, from rates that differ in how often it goes up alone
        assert 32 * 13_440 / (plan.guard.bits_of_a_sample(z) + decoder) == pytest.approx(ratio, rel=0.05)
