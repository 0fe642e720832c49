import numpy as np
import pytest
import torch

from cutlayer.data import TinyImageNet
from cutlayer.data.base import CorruptData, MissingData, overlap

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (2000, 3, 32, 32), dtype=np.uint8)
LABELS = [number % 200 for number in range(2000)]
KINDS = [f"kind {number}" for number in range(200)]


@pytest.fixture
def sheet(tmp_path, save_sheet):
    save_sheet(tmp_path / "tinyimagenet32" / "aux.jpg", IMAGES, 50, labels=LABELS, classes=KINDS)
    return tmp_path


def test_a_tenth_of_every_class_of_the_sheet_is_for_testing(sheet):
    loaded, again = TinyImageNet().load(sheet), TinyImageNet().load(sheet)
    assert loaded.train.y.bincount().tolist() == [9] * 200
    assert loaded.test.y.bincount().tolist() == [1] * 200
    assert overlap(loaded.train, loaded.test) == 0
    assert loaded.classes == tuple(KINDS)
    assert torch.equal(loaded.test.x, again.test.x)
    # Rows keep their labels.
    first = loaded.test.x[0].numpy()
    assert loaded.test.y[0] == LABELS[int((first == IMAGES).all((1, 2, 3)).argmax())]


def test_the_sheet_has_one_size(sheet):
    with pytest.raises(ValueError, match="holds pictures of 32x32: size=64 needs tiny-imagenet-200/"):
        TinyImageNet(size=64).load(sheet)


def test_the_sheet_names_all_kinds(tmp_path, save_sheet):
    save_sheet(tmp_path / "tinyimagenet32" / "aux.jpg", IMAGES[:200], 50, labels=LABELS[:200], classes=KINDS[:9])
    with pytest.raises(CorruptData, match="classes should name 200 kinds, it names 9"):
        TinyImageNet().load(tmp_path)


@pytest.fixture
def official(tmp_path, save_picture):
    root = tmp_path / "tiny-imagenet-200"
    answers = []
    for number, code in enumerate(("n02", "n01", "n03")):
        for picture in range(4):
            pixels = np.full((64, 64, 3), 50 * number, np.uint8)
            save_picture(root / "train" / code / "images" / f"{code}_{picture}.JPEG", pixels)
        (root / "train" / code / f"{code}_boxes.txt").write_text("n02_0.JPEG\t0\t0\t62\t62\n")
        save_picture(root / "val" / "images" / f"val_{number}.JPEG", np.full((64, 64), 50 * number, np.uint8))
        answers.append(f"val_{number}.JPEG\t{code}\t0\t0\t62\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(answers))
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tbullfrog\nn09\tnobody\n")
    return tmp_path


@pytest.mark.parametrize("size", [32, 64])
def test_the_official_folders_are_read(official, size):
    loaded = TinyImageNet(size=size).load(official)
    assert loaded.train.x.shape == (12, 3, size, size)
    assert loaded.test.x.shape == (3, 3, size, size)
    assert loaded.classes == ("goldfish, Carassius", "bullfrog", "n03")
    assert loaded.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert loaded.test.y.tolist() == [1, 0, 2]
    # n02 is black, n01 dark, n03 lighter: pictures stay with their labels.
    for samples in (loaded.train, loaded.test):
        wanted = torch.tensor([50, 0, 100])[samples.y]
        assert (samples.x.flatten(1).long() - wanted[:, None]).abs().max() <= 2


def test_a_limit_leaves_the_other_pictures_unread(official):
    (official / "tiny-imagenet-200/train/n01/images").joinpath("broken.JPEG").write_bytes(b"")
    assert len(TinyImageNet(limit=3).load(official).train) == 3
    with pytest.raises(CorruptData, match=r"broken\.JPEG is not usable"):
        TinyImageNet().load(official)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("val/val_annotations.txt", "val_0.JPEG\tn99\n", r"val_0\.JPEG is not there, or of a kind"),
        ("val/val_annotations.txt", "val_7.JPEG\tn01\n", r"val_7\.JPEG is not there, or of a kind"),
        ("val/val_annotations.txt", "", "its lines should have 2 or more fields"),
        ("val/val_annotations.txt", "val_0.JPEG n01\n", "its lines should have 2 or more fields"),
    ],
)
def test_answers_that_do_not_fit_are_refused(official, file, content, words):
    (official / "tiny-imagenet-200" / file).write_text(content)
    with pytest.raises(CorruptData, match=words):
        TinyImageNet().load(official)


def test_without_files_one_hears_where_to_get_them(tmp_path):
    with pytest.raises(MissingData, match=r"tinyimagenet32/aux\.jpg .*tiny-imagenet-200\.zip"):
        TinyImageNet().load(tmp_path)


@pytest.mark.parametrize("size", [0, 1.5, None])
def test_a_size_is_a_positive_whole_number(size):
    with pytest.raises(ValueError, match="size is the width"):
        TinyImageNet(size=size) if size is not None else TinyImageNet(size="x")
