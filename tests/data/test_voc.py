"""PASCAL VOC in its official folders, as small files made here."""

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.core.batch import NO_LABEL
from cutlayer.data import VOC, overlap
from cutlayer.data.base import CorruptData, MissingData, parts
from cutlayer.data.check import check
from cutlayer.data.masks import CLASSES
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.data.rows import Rows

ROOT = "VOCdevkit/VOC2012"


@pytest.fixture
def voc(tmp_path):
    """Six training and three validation pictures of 20x30; masks in a palette, with a rim of 255."""
    random, root = np.random.default_rng(0), tmp_path / ROOT
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    for part, count in (("train", 6), ("val", 3)):
        names = [f"2007_{part}{number}" for number in range(count)]
        (root / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
                root / f"JPEGImages/{name}.jpg"
            )
            mask = random.integers(0, 21, (20, 30), dtype=np.uint8)
            mask[:2] = 255
            save_mask(root / f"SegmentationClass/{name}.png", mask)
    return tmp_path


def save_mask(path, mask):
    image = Image.fromarray(mask, mode="P")
    image.putpalette(list(range(256)) * 3)
    image.save(path)


def test_pictures_and_masks_are_cut_alike(voc):
    loaded = VOC(size=20).load(voc)
    assert loaded.classes == CLASSES and len(CLASSES) == 21
    assert loaded.train.x.shape == (6, 3, 20, 20) and loaded.train.y.shape == (6, 20, 20) and len(loaded.test) == 3
    mask = np.asarray(Image.open(voc / ROOT / "SegmentationClass/2007_train0.png"))[:, 5:25].astype(np.int64)
    assert torch.equal(loaded.train.y[0], torch.from_numpy(np.where(mask == 255, NO_LABEL, mask)))
    picture = np.array(Image.open(voc / ROOT / "JPEGImages/2007_train0.jpg"))[:, 5:25]
    assert torch.equal(loaded.train.x[0], torch.from_numpy(picture).permute(2, 0, 1))


def test_a_resized_mask_mixes_no_classes(voc):
    for size in (7, 33):
        y = VOC(size=size).load(voc).train.y
        assert y.shape == (6, size, size) and set(y.unique().tolist()) <= {NO_LABEL, *range(21)}


def test_from_disk_it_is_the_same(voc, monkeypatch):
    whole = VOC(size=12).load(voc)
    monkeypatch.setenv(MEMORY, "1KB")
    monkeypatch.setenv(DECODERS, "0")
    disk = VOC(size=12).load(voc)
    assert isinstance(disk.train.x, Rows) and isinstance(disk.train.y, Rows)
    for _ in range(2):
        assert torch.equal(disk.train.x[:], whole.train.x) and torch.equal(disk.train.y[:], whole.train.y)
    cut = [parts(one, aux=2, val=0.3, seed=1) for one in (whole, disk)]
    assert torch.equal(cut[0].private.y, cut[1].private.y[:]) and overlap(cut[0].val, cut[1].val) == len(cut[0].val)


def test_other_lists_and_masks(voc):
    (voc / ROOT / "ImageSets/Segmentation/trainaug.txt").write_text("2007_train1\n2007_train2\n")
    (voc / ROOT / "SegmentationClass").rename(voc / ROOT / "SegmentationClassAug")
    loaded = VOC(size=8, train="trainaug", masks="SegmentationClassAug").load(voc)
    assert len(loaded.train) == 2 and len(VOC(size=8, masks="SegmentationClassAug", limit=4).load(voc).train) == 4
    with pytest.raises(
        CorruptData, match=r"train\.txt is not usable: it names 6 pictures that SegmentationClass/ has no"
    ):
        VOC(size=8).load(voc)


def test_bad_input_is_named(voc):
    root = voc / ROOT
    save_mask(root / "SegmentationClass/2007_train2.png", np.zeros((20, 28), np.uint8))
    with pytest.raises(CorruptData, match=r"train2\.png .* it has 28x20 pixels, its picture 2007_train2\.jpg 30x20"):
        VOC(size=8).load(voc)
    save_mask(root / "SegmentationClass/2007_train2.png", np.full((20, 30), 21, np.uint8))
    with pytest.raises(CorruptData, match=r"it has a pixel of class 21, and classes are 0 to 20 \(255: none\)"):
        VOC(size=8).load(voc)
    Image.new("RGB", (30, 20)).save(root / "SegmentationClass/2007_train2.png")
    with pytest.raises(CorruptData, match="of the kind RGB, not one class number each"):
        VOC(size=8).load(voc)
    save_mask(root / "SegmentationClass/2007_train2.png", np.zeros((20, 30), np.uint8))
    (root / "JPEGImages/2007_train3.jpg").write_bytes(b"nothing")
    with pytest.raises(CorruptData, match=r"2007_train3\.jpg is not usable"):
        VOC(size=8).load(voc)
    kept = VOC(size=8, skip_broken=True).load(voc)
    assert len(kept.train) == 5 and kept.notes[0].startswith("1 of 6 pictures do not decode and were left out: ")
    (root / "JPEGImages/2007_train4.jpg").unlink()
    with pytest.raises(
        CorruptData, match=r"names 1 pictures that JPEGImages/ has no file of, the first 2007_train4\.jpg"
    ):
        VOC(size=8).load(voc)
    (root / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(MissingData, match=r"there is no VOCdevkit/VOC2012/ImageSets/Segmentation/val\.txt in"):
        VOC(size=8).load(voc)


def test_check_knows_the_layout(voc):
    row = {row["name"]: row for row in check(voc)}["VOC"]
    assert row["found"] and row["shape"] == [3, 513, 513]
    assert row["detail"] == "it has 6 + 3 samples, it should have 1,464 + 1,449 or 10,582 + 1,449"
