import numpy as np
import pytest
import torch

from cutlayer.data import ImageFolder
from cutlayer.data.base import CorruptData, MissingData, overlap

RANDOM = np.random.default_rng(0)


@pytest.fixture
def put(tmp_path, save_picture):
    """`put(place, count)`: so many pictures in that folder; the first byte of each is `mark`."""

    def make(place, count=1, side=6, mark=None):
        for number in range(count):
            pixels = RANDOM.integers(0, 256, (side, side, 3), dtype=np.uint8)
            pixels[0, 0] = mark if mark is not None else pixels[0, 0]
            save_picture(tmp_path / place / f"{number:03d}.png", pixels)

    return make


def test_folders_are_classes_and_a_tenth_is_set_aside(tmp_path, put):
    put("mine/dog", 20, mark=1)
    put("mine/cat/deep/er", 10, mark=0)
    put("mine/ant", 10, mark=2)
    put("mine/.hidden", 3)
    (tmp_path / "mine/dog/notes.txt").write_text("not a picture")
    (tmp_path / "mine/dog/._000.png").write_bytes(b"what another system left")
    loaded = ImageFolder(str(tmp_path / "mine")).load()
    assert loaded.classes == ("ant", "cat", "dog")
    assert loaded.train.y.bincount().tolist() == [9, 9, 18]
    assert loaded.test.y.bincount().tolist() == [1, 1, 2]
    assert overlap(loaded.train, loaded.test) == 0
    for samples in (loaded.train, loaded.test):
        assert torch.equal(samples.x[:, 0, 0, 0].long(), torch.tensor([2, 0, 1])[samples.y])


@pytest.mark.parametrize("held", ["test", "val"])
def test_a_test_folder_is_used_whole(tmp_path, put, held):
    put("mine/train/a", 5)
    put("mine/train/b", 4)
    put(f"mine/{held}/b", 3)
    loaded = ImageFolder("mine").load(tmp_path)
    assert loaded.train.y.tolist() == [0] * 5 + [1] * 4
    assert loaded.test.y.tolist() == [1] * 3


def test_test_comes_before_val_and_train_alone_is_carved(tmp_path, put):
    put("mine/train/a", 20)
    assert len(ImageFolder("mine").load(tmp_path).test) == 2
    put("mine/val/a", 5)
    put("mine/test/a", 7)
    assert len(ImageFolder("mine").load(tmp_path).test) == 7


def test_a_size_makes_mixed_pictures_one(tmp_path, put):
    put("mine/a", 4, side=6)
    put("mine/b", 4, side=9)
    with pytest.raises(ValueError, match=r"8 pictures have 2 sizes: 6x6 \(4\), 9x9 \(4\); give size=6"):
        ImageFolder("mine").load(tmp_path)
    assert ImageFolder("mine", size=5).load(tmp_path).train.x.shape == (7, 3, 5, 5)


def test_a_limit_leaves_the_other_pictures_unread(tmp_path, put):
    put("mine/train/a", 30)
    put("mine/test/a", 2)
    loaded = ImageFolder("mine", limit=10).load(tmp_path)
    whole = ImageFolder("mine").load(tmp_path)
    assert len(loaded.train) == 10
    assert overlap(loaded.train, whole.train) == 10
    with pytest.raises(ValueError, match="limit=31 is more than the 30 training samples of ImageFolder"):
        ImageFolder("mine", limit=31).load(tmp_path)
    # With every file but those ten broken, the ten are still read.
    kept = {image.numpy().tobytes() for image in loaded.train.x}
    for row, path in enumerate(sorted((tmp_path / "mine/train/a").iterdir())):
        if whole.train.x[row].numpy().tobytes() not in kept:
            path.write_bytes(b"")
    assert torch.equal(ImageFolder("mine", limit=10).load(tmp_path).train.x, loaded.train.x)


def test_what_is_not_there_is_named(tmp_path, put):
    with pytest.raises(MissingData, match="there is no folder mine, neither here nor in"):
        ImageFolder("mine").load(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r"mine has no folders: put the pictures of each class in one"):
        ImageFolder("mine").load(tmp_path)
    put("mine/a")
    (tmp_path / "mine" / "b").mkdir()
    with pytest.raises(ValueError, match=r"b holds no picture \(\.bmp, .*\): fill the class or remove it"):
        ImageFolder("mine").load(tmp_path)


def test_parts_that_do_not_fit_are_refused(tmp_path, put):
    put("mine/test/a")
    with pytest.raises(ValueError, match="has test/ but no train/"):
        ImageFolder("mine").load(tmp_path)
    put("mine/train/a")
    put("mine/test/b")
    with pytest.raises(ValueError, match="has a folder 'b', which is none of the classes a"):
        ImageFolder("mine").load(tmp_path)


def test_one_damaged_picture_refuses_the_whole(tmp_path, put):
    put("mine/a", 12)
    (tmp_path / "mine/a/005.png").write_bytes((tmp_path / "mine/a/005.png").read_bytes()[:50])
    with pytest.raises(CorruptData, match=r"005\.png is not usable"):
        ImageFolder("mine").load(tmp_path)


@pytest.mark.parametrize("size", [0, -1, 2.5, "32"])
def test_a_size_is_a_positive_whole_number(size):
    with pytest.raises(ValueError, match="size is the width and height that pictures get, at least 1; got"):
        ImageFolder("mine", size=size)
