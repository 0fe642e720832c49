"""Recipes on faces, a few steps each, on small files in the official layouts."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from test_recipes import RECIPES, plan_of

from cutlayer.data.base import parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.batches import task_of
from cutlayer.training.plan.shapes import cut_shapes

COUNT = 16
# One of each kind always, the others in the campaign.
SOME = ("fora_2", "lfq_4_small", "prism_fairface", "disco_utkface_8")
ALL = [name.partition(":")[2] for name in RECIPES if name.startswith("faces.py:")]
FACES = [name if name in SOME else pytest.param(name, marks=pytest.mark.campaign) for name in ALL]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixteen pictures of each set, of four people in CelebA."""
    root, random = tmp_path_factory.mktemp("faces"), np.random.default_rng(0)
    images = [Image.fromarray(random.integers(0, 256, (218, 178, 3), np.uint8)) for _ in range(COUNT)]

    def save(place, names):
        (root / place).mkdir(parents=True)
        for name, image in zip(names, images, strict=True):
            image.save(root / place / name)

    named = [f"{number:06d}.jpg" for number in range(1, COUNT + 1)]
    save("celeba/img_align_celeba", named)
    lists = root / "celeba"
    rows = [f"{name} {(-1, 1)[n % 2]} {(-1, 1)[n // 2 % 2]}" for n, name in enumerate(named)]
    (lists / "list_attr_celeba.txt").write_text("\n".join([str(COUNT), "Smiling Male", *rows]))
    (lists / "list_eval_partition.txt").write_text("\n".join(f"{x} {2 * (n >= 12)}" for n, x in enumerate(named)))
    (lists / "identity_CelebA.txt").write_text("\n".join(f"{x} {n // 4}" for n, x in enumerate(named)))
    for part in ("train", "val"):
        save(f"fairface/{part}", [f"{n}.jpg" for n in range(COUNT)])
        rows = [
            f"{part}/{n}.jpg,3-9,{('Male', 'Female')[n % 2]},{('White', 'Indian')[n // 2 % 2]},True"
            for n in range(COUNT)
        ]
        table = root / "fairface" / f"fairface_label_{part}.csv"
        table.write_text("\n".join(["file,age,gender,race,service_test", *rows]))
    save("UTKFace", [f"{20 + n}_{n % 2}_{n // 2 % 5}_201701161745{n:05d}.jpg.chip.jpg" for n in range(COUNT)])
    return root


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FACES)
def test_a_recipe_on_faces_runs(name, folder):
    plan = plan_of(f"faces.py:{name}")
    loaded = plan.data.load(folder)
    few = {"clients": min(plan.clients, 2), "epochs": 1, "batch_size": 6, "val_share": 0.0, "private_seed": 0}
    run = LocalRun(replace(plan, **few), parts(loaded, aux=0, val=0, seed=0), classes=len(loaded.classes))
    assert run.train()
    (epoch,) = run.progress.history
    assert np.isfinite(epoch["task"])


def test_lfq_reads_the_pictures_of_celeba_as_they_are(folder):
    """D = 13,440, printed as 13,400, and near the thesis' rates once the decoder is left out of them."""
    for name, ratio in {"lfq_4": 274.83, "lfq_4_small": 1031.26, "lfq_4_smallest": 1132.26}.items():
        plan = plan_of(f"faces.py:{name}")
        loaded = plan.data.load(folder)
        z = cut_shapes(plan, task_of(loaded.train, 2)).z
        assert z == (80, 14, 12)
        decoder = 71  # bits a sample, from rates that differ in how often it goes up alone
        assert 32 * 13_440 / (plan.guard.bits_of_a_sample(z) + decoder) == pytest.approx(ratio, rel=0.05)
