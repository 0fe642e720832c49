"""A few samples of every set that recipes name, in the files and folders that the set is published in.

Nothing in them can be learnt: they are there so that a recipe finds its data, and runs.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cutlayer.data import cifar10, cifar100, fashion_mnist, mnist, svhn
from cutlayer.data.coco import OTHER_NAMES
from cutlayer.data.fairface import FACTS
from cutlayer.data.gtsrb import CLASSES as SIGNS
from cutlayer.data.idx import SIDE
from cutlayer.data.masks import CLASSES as THINGS
from cutlayer.data.tiny_imagenet import KINDS

COUNT = 60  # samples of a part, where the set says nothing else; as many as ten clients need for a batch each
FACES = 48
RANDOM = np.random.default_rng(0)


def write_all(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Every set in one data folder. Readers that insist on a published count are told this one."""
    for write in (_idx, _cifar, _svhn, _signs, _tiny_imagenet, _reviews, _celeba, _fairface, _utkface, _photographs):
        write(root)
    patch.setattr(cifar10, "BATCH", COUNT)
    for module, reader, place in (
        (mnist, "read_split", 3), (fashion_mnist, "read_split", 3), (cifar100, "read_file", 1), (svhn, "read_mat", 1),
    ):  # fmt: skip
        patch.setattr(module, reader, _few(getattr(module, reader), place))


def _few(read: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A reader whose argument at `place` is the count of samples."""
    return lambda *given: read(*given[:place], COUNT, *given[place + 1 :])


def _bytes(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, np.uint8)


def _labels(classes: int, count: int = COUNT) -> np.ndarray:
    return np.arange(count, dtype=np.uint8) % classes


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _picture(path: Path, height: int, width: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_bytes(height, width, 3)).save(path)


def _idx(root: Path) -> None:
    """MNIST and Fashion-MNIST."""
    for folder in ("mnist", "fashion-mnist"):
        for part in ("train", "t10k"):
            for kind, array in (("images-idx3", _bytes(COUNT, SIDE, SIDE)), ("labels-idx1", _labels(10))):
                sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
                head = bytes([0, 0, 8, array.ndim])
                _write(root / folder / f"{part}-{kind}-ubyte", head + sizes + array.tobytes())


def _cifar(root: Path) -> None:
    """Binary records: one label in front of the pixels in CIFAR-10, two in CIFAR-100."""
    pixels = 3 * 32 * 32
    for name in cifar10.BATCHES:
        records = np.hstack([_labels(10)[:, None], _bytes(COUNT, pixels)])
        _write(root / f"cifar-10-batches-bin/{name}.bin", records.tobytes())
    for name in ("train", "test"):
        records = np.hstack([_labels(20)[:, None], _labels(100)[:, None], _bytes(COUNT, pixels)])
        _write(root / f"cifar-100-binary/{name}.bin", records.tobytes())


def _svhn(root: Path) -> None:
    from scipy.io import savemat

    (root / "svhn").mkdir()
    for part in ("train", "test"):
        savemat(root / f"svhn/{part}_32x32.mat", {"X": _bytes(32, 32, 3, COUNT), "y": _labels(10)[:, None] + 1})


def _signs(root: Path) -> None:
    """GTSRB's folders, and the table of answers."""
    for label in range(len(SIGNS)):
        for number in range(2):
            _picture(root / f"GTSRB/Final_Training/Images/{label:05d}/{number:05d}_00000.ppm", 34, 36)
    names = [f"{number:05d}.ppm" for number in range(10)]
    for name in names:
        _picture(root / "GTSRB/Final_Test/Images" / name, 36, 34)
    rows = [f"{name};36;34;5;5;30;30;{label}" for label, name in enumerate(names)]
    table = "\n".join(["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId", *rows])
    _write(root / "GTSRB/GT-final_test.csv", table)


def _tiny_imagenet(root: Path) -> None:
    home, codes = root / "tiny-imagenet-200", [f"n{label:08d}" for label in range(KINDS)]
    for code in codes[:COUNT]:
        _picture(home / f"train/{code}/images/{code}_0.JPEG", 64, 64)
    for number in range(10):
        _picture(home / f"val/images/val_{number}.JPEG", 64, 64)
    lines = [f"val_{number}.JPEG\t{codes[number]}\t0\t0\t9\t9" for number in range(10)]
    _write(home / "val/val_annotations.txt", "\n".join(lines))
    _write(home / "words.txt", "\n".join(f"{code}\tthing {code}" for code in codes))


def _reviews(root: Path) -> None:
    words = ["a", "good", "film", "with", "many", "words", ",", "and", "more", "."]
    for part in ("train", "test"):
        lines = [
            json.dumps({"label": number % 2, "text": " ".join(RANDOM.choice(words, 80))}) for number in range(COUNT)
        ]
        _write(root / f"imdb/{part}.jsonl.gz", gzip.compress("\n".join(lines).encode()))


def _celeba(root: Path) -> None:
    """Four pictures of each person; a quarter of the people are tested on."""
    names = [f"{number:06d}.jpg" for number in range(1, FACES + 1)]
    for name in names:
        _picture(root / "celeba/img_align_celeba" / name, 218, 178)
    facts = [f"{name} {(-1, 1)[n % 2]} {(-1, 1)[n // 2 % 2]}" for n, name in enumerate(names)]
    _write(root / "celeba/list_attr_celeba.txt", "\n".join([str(FACES), "Smiling Male", *facts]))
    parts = [f"{name} {2 * (4 * n >= 3 * FACES)}" for n, name in enumerate(names)]
    _write(root / "celeba/list_eval_partition.txt", "\n".join(parts))
    _write(root / "celeba/identity_CelebA.txt", "\n".join(f"{name} {n // 4}" for n, name in enumerate(names)))


def _fairface(root: Path) -> None:
    for part in ("train", "val"):
        rows = ["file,age,gender,race,service_test"]
        for n in range(COUNT // 3):
            _picture(root / f"fairface/{part}/{n}.jpg", 64, 64)
            age, gender, race = (FACTS[fact][n % len(FACTS[fact])] for fact in ("age", "gender", "race"))
            rows.append(f"{part}/{n}.jpg,{age},{gender},{race},True")
        _write(root / f"fairface/fairface_label_{part}.csv", "\n".join(rows))


def _utkface(root: Path) -> None:
    for n in range(COUNT):
        _picture(root / f"UTKFace/{20 + n}_{n % 2}_{n // 2 % 5}_201701161745{n:05d}.jpg.chip.jpg", 64, 64)


def _photographs(root: Path) -> None:
    """ImageNet, COCO and VOC, which are read from disk: six to learn from and four to test on."""
    names = {label: OTHER_NAMES.get(name, name) for label, name in enumerate(THINGS) if label}
    voc = root / "VOCdevkit/VOC2012"
    for part, count in (("train", 6), ("val", 4)):
        for n in range(count):
            _picture(root / f"imagenet/{part}/n{n % 2:08d}/{n}.JPEG", 40, 44)
            _picture(root / f"coco/{part}2017/{n}.jpg", 40, 44)
            _picture(voc / f"JPEGImages/{part}{n}.jpg", 40, 44)
            mask = Image.fromarray(RANDOM.integers(0, len(THINGS), (40, 44), np.uint8), mode="P")
            mask.putpalette(list(range(256)) * 3)
            (voc / "SegmentationClass").mkdir(exist_ok=True)
            mask.save(voc / f"SegmentationClass/{part}{n}.png")
        _write(voc / f"ImageSets/Segmentation/{part}.txt", "\n".join(f"{part}{n}" for n in range(count)))
        told = {
            "images": [{"id": n, "file_name": f"{n}.jpg", "width": 44, "height": 40} for n in range(count)],
            "annotations": [
                {"image_id": n, "category_id": 1 + n, "segmentation": [[4, 4, 34, 4, 34, 34, 4, 34]], "area": 2000}
                for n in range(count)
            ],
            "categories": [{"id": label, "name": name} for label, name in names.items()],
        }
        _write(root / f"coco/annotations/instances_{part}2017.json", json.dumps(told))
