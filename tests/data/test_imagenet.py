"""ImageNet in the official layouts, as small files made here."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.data import ImageNet
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.check import check
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.data.rows import Rows

CODES = ("n01440764", "n01443537", "n01484850")


@pytest.fixture
def put(tmp_path, save_picture):
    random = np.random.default_rng(0)

    def make(place, height=20, width=24):
        return save_picture(tmp_path / place, random.integers(0, 256, (height, width, 3), dtype=np.uint8))

    return make


@pytest.fixture
def imagenet(tmp_path, put):
    """Four training and two validation pictures of each of three classes, in class folders."""
    for part, count in (("train", 4), ("val", 2)):
        for code in CODES:
            for number in range(count):
                put(f"imagenet/{part}/{code}/{code}_{number}.JPEG", 20 + number, 30 - number)
    return tmp_path


def test_class_folders_are_read_in_the_order_of_synsets(imagenet):
    loaded = ImageNet(size=16).load(imagenet)
    assert loaded.classes == CODES
    assert loaded.train.x.shape == (12, 3, 16, 16) and loaded.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert loaded.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(ImageNet(size=16, limit=6).load(imagenet).train) == 6


def test_a_list_names_the_classes(imagenet):
    (imagenet / "imagenet/LOC_synset_mapping.txt").write_text(
        "".join(f"{code} name {n}, other\n" for n, code in enumerate(CODES))
    )
    assert ImageNet(size=8).load(imagenet).classes == ("name 0", "name 1", "name 2")
    (imagenet / "imagenet/LOC_synset_mapping.txt").unlink()
    index = imagenet / "imagenet_class_index.json"
    index.write_text(json.dumps({str(n): [code, f"thing_{n}"] for n, code in enumerate(CODES)}))
    assert ImageNet(size=8).load(imagenet).classes == ("thing_0", "thing_1", "thing_2")
    index.write_text(json.dumps({"0": [CODES[0], "thing"]}))
    with pytest.raises(CorruptData, match=r"list of classes does not name 2 of train/: n01443537, n01484850"):
        ImageNet(size=8).load(imagenet)
    index.write_text("[3]")
    with pytest.raises(CorruptData, match="an object of pairs"):
        ImageNet(size=8).load(imagenet)


def test_the_archive_of_the_challenge_has_one_folder_and_a_list_of_answers(tmp_path, put):
    root = "ILSVRC/Data/CLS-LOC"
    for code in CODES:
        put(f"{root}/train/{code}/a.JPEG")
    names = [f"ILSVRC2012_val_{number:08d}" for number in range(3)]
    for name in names:
        put(f"{root}/val/{name}.JPEG")
    with pytest.raises(MissingData, match=r"no class folders: put LOC_val_solution\.csv into"):
        ImageNet(size=8).load(tmp_path)
    answers = tmp_path / "LOC_val_solution.csv"
    lines = [f"{name},{code} 1 2 3 4 \n" for name, code in zip(names, reversed(CODES), strict=True)]
    answers.write_text("ImageId,PredictionString\n" + "".join(lines))
    assert ImageNet(size=8).load(tmp_path).test.y.tolist() == [2, 1, 0]
    answers.write_text("ImageId,PredictionString\nILSVRC2012_val_00000009,n01440764 1 2 3 4\n")
    with pytest.raises(CorruptData, match=r"ILSVRC2012_val_00000009\.JPEG is not in val/"):
        ImageNet(size=8).load(tmp_path)


def test_the_crop_is_that_of_published_networks(tmp_path, put):
    """224 of 256: of a picture with a rim, the central 7/8 of the square is left."""
    for part in ("train", "val"):
        for code in CODES:
            pixels = np.full((64, 96, 3), 255, np.uint8)
            pixels[4:60, 20:76] = 10  # what is left of the central square of 64
            place = tmp_path / f"imagenet/{part}/{code}/a.JPEG"
            place.parent.mkdir(parents=True)
            Image.fromarray(pixels).save(place, "PNG")
    loaded = ImageNet(size=56).load(tmp_path)
    assert (loaded.train.x == 10).all()
    assert (ImageNet(size=64, crop=1.0).load(tmp_path).train.x[0, 0] == 255).any()


def test_from_disk_it_is_the_same(imagenet, monkeypatch):
    whole = ImageNet(size=16).load(imagenet)
    monkeypatch.setenv(MEMORY, "1KB")
    monkeypatch.setenv(DECODERS, "0")
    disk = ImageNet(size=16).load(imagenet)
    assert isinstance(disk.train.x, Rows)
    assert torch.equal(disk.train.x[:], whole.train.x) and torch.equal(disk.test.x[:], whole.test.x)


def test_what_lacks_is_said(tmp_path, imagenet):
    with pytest.raises(MissingData, match=r"there is no imagenet/train/ in .*nowhere"):
        ImageNet().load(tmp_path / "nowhere")
    for path in (imagenet / "imagenet/val/n01443537").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(ValueError, match="val/n01443537 holds no picture"):
        ImageNet().load(imagenet)
    (imagenet / "imagenet/val/n01443537").rename(tmp_path / "away")
    with pytest.raises(CorruptData, match="no picture of 1 of the 3 classes: n01443537"):
        ImageNet().load(imagenet)
    (imagenet / "imagenet/val").rename(tmp_path / "gone")
    with pytest.raises(MissingData, match="has train/ but no val/"):
        ImageNet().load(imagenet)


def test_a_picture_that_does_not_decode_is_named_and_left_out_only_on_request(imagenet, monkeypatch):
    bad = imagenet / "imagenet/train/n01443537/n01443537_1.JPEG"
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(CorruptData, match=r"n01443537_1\.JPEG is not usable: not a picture that can be read"):
        ImageNet(size=16).load(imagenet)
    loaded = ImageNet(size=16, skip_broken=True).load(imagenet)
    assert loaded.train.y.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert loaded.notes == (f"1 of 12 pictures do not decode and were left out: {bad}",)
    monkeypatch.setenv(MEMORY, "1KB")
    monkeypatch.setenv(DECODERS, "0")
    disk = ImageNet(size=16, skip_broken=True).load(imagenet)
    assert torch.equal(disk.train.x[:], loaded.train.x) and disk.notes == loaded.notes
    row = {row["name"]: row for row in check(imagenet)}["ImageNet"]
    assert not row["ok"] and "n01443537_1.JPEG is not usable" in row["detail"]


def test_check_knows_the_layout(imagenet, monkeypatch):
    monkeypatch.setenv(MEMORY, "1KB")
    monkeypatch.setenv(DECODERS, "0")
    row = {row["name"]: row for row in check(imagenet)}["ImageNet"]
    assert row["found"] and row["detail"] == "it has 12 + 6 samples, it should have 1,281,167 + 50,000"
    monkeypatch.setattr(
        ImageNet, "about", type(ImageNet.about)("a", "b", shape=(3, 224, 224), classes=3, forms=ImageNet.about.forms)
    )
    row = {row["name"]: row for row in check(imagenet)}["ImageNet"]
    assert row["ok"] and row["detail"].endswith("in 3 classes; 64 of each part were decoded")


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"crop is the share .* in \(0, 1\]; got 0"):
        ImageNet(crop=0)
