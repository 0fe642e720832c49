"""The recipes of split inference on large sets: their cuts and rates are the thesis's, and they run a few steps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_recipes import plan_of, task_of

from cutlayer.data.base import parts
from cutlayer.data.coco import OTHER_NAMES
from cutlayer.data.masks import CLASSES
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.plan.shapes import cut_shapes

torch.set_num_threads(1)
SIDE = 16


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six pictures of ImageNet and of COCO, one or two in memory at a time."""
    monkeypatch.setenv(MEMORY, "3KB")
    monkeypatch.setenv(DECODERS, "0")
    random = np.random.default_rng(0)

    def picture(path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE + 4, 3), dtype=np.uint8)).save(path)

    for part, count in (("train", 3), ("val", 1)):
        for number in range(2 * count):
            picture(tmp_path / f"imagenet/{part}/n{number % 2:08d}/{number}.JPEG")
            picture(tmp_path / f"coco/{part}2017/{number}.jpg")
        names = [{"id": label, "name": OTHER_NAMES.get(name, name)} for label, name in enumerate(CLASSES) if label]
        told = {
            "images": [
                {"id": n, "file_name": f"{n}.jpg", "width": SIDE + 4, "height": SIDE} for n in range(2 * count)
            ],
            "annotations": [
                {"image_id": n, "category_id": 1 + n, "segmentation": [[4, 4, 14, 4, 14, 14, 4, 14]], "area": 2000}
                for n in range(2 * count)
            ],
            "categories": names,
        }
        (tmp_path / "coco/annotations").mkdir(exist_ok=True)
        (tmp_path / f"coco/annotations/instances_{part}2017.json").write_text(json.dumps(told))
    return tmp_path


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["imagenet_lfq", "coco_lfq"])
def test_a_recipe_learns_for_a_few_steps_from_disk(folder, name):
    plan = plan_of(f"split_inference.py:{name}")
    plan = replace(plan, data=replace(plan.data, size=SIDE), epochs=1, batch_size=3, val_share=0.0, private_seed=1)
    loaded = plan.data.load(folder)
    assert loaded.train.on_disk
    run = LocalRun(plan, parts(loaded, aux=0, val=0.0, seed=0), classes=len(loaded.classes))
    assert run.train() and run.progress.step == 2
    (accuracy,) = run.evaluate(run.parts.test)
    assert 0 <= accuracy <= 1
    assert (run.clients[0].scored.confusion is not None) == (name == "coco_lfq")


@pytest.mark.parametrize(
    ("name", "cut", "bits", "rate"),
    [
        ("imagenet_lfq", (2048, 7, 7), 26 * 16, 0.008),
        ("imagenet_lfq_most", (2048, 7, 7), 195 * 16, 0.062),
        ("coco_lfq", (2048, 65, 65), 15 * 33 * 33, 0.062),
    ],
)
def test_cuts_and_rates_are_near_those_of_the_thesis(name, cut, bits, rate):
    plan = plan_of(f"split_inference.py:{name}")
    task = task_of(plan)
    shapes = cut_shapes(plan, task)
    assert shapes.z == cut and torch.Size(shapes.sent).numel() == bits
    assert bits / torch.Size(task.shape[1:]).numel() == pytest.approx(rate, rel=0.05)
