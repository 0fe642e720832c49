import hashlib
import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.core.spec import spec
from cutlayer.data import cifar10
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.cifar10 import CIFAR10, read_batches

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, 200, dtype=np.uint8)


def write_binary(path, images=IMAGES, labels=LABELS):
    path.write_bytes(b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True)))
    return path


def sheet(images):
    """A hundred images side by side, pasted one at a time."""
    picture = Image.new("RGB", (320, 320))
    for number, image in enumerate(images):
        tile = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        picture.paste(tile, (number % 10 * 32, number // 10 * 32))
    return picture


def webp(picture):
    content = io.BytesIO()
    picture.save(content, "WEBP", lossless=True)
    return content.getvalue()


def write_sheets(path, members=None):
    members = {
        "labels.bin": LABELS.tobytes(),
        "000.webp": webp(sheet(IMAGES[:100])),
        "001.webp": webp(sheet(IMAGES[100:])),
    } | (members or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def write_pickle(path, images=IMAGES, labels=LABELS):
    content = {b"data": images.reshape(len(images), -1), b"labels": labels.tolist(), b"batch_label": b"one"}
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


FORMS = [(write_binary, "a.bin"), (write_sheets, "a.zip"), (write_pickle, "data_batch_1")]


@pytest.mark.parametrize(("write", "name"), FORMS)
def test_every_form_reads_back_what_was_written(tmp_path, write, name):
    samples = read_batches([write(tmp_path / name)], 200)
    assert torch.equal(samples.x, torch.from_numpy(IMAGES))
    assert samples.y.tolist() == LABELS.tolist()


def test_batches_follow_in_the_order_asked(tmp_path):
    first = write_binary(tmp_path / "a.bin")
    second = write_binary(tmp_path / "b.bin", IMAGES[::-1], LABELS[::-1])
    samples = read_batches([second, first], 200)
    assert torch.equal(samples.x[200:], torch.from_numpy(IMAGES))
    assert torch.equal(samples.x[:200], torch.from_numpy(IMAGES).flip(0))
    assert samples.y.tolist() == [*LABELS[::-1].tolist(), *LABELS.tolist()]


@pytest.mark.parametrize("home", ["cifar10", "cifar-10-batches-bin"])
def test_a_batch_of_another_size_is_not_cifar10(tmp_path, home):
    (tmp_path / home).mkdir()
    write_binary(tmp_path / home / "data_batch_2.bin")
    with pytest.raises(CorruptData, match=r"data_batch_2\.bin .*10000 images take 30730000 bytes, .* 614600"):
        CIFAR10(batches=(2,)).load(tmp_path)


def test_without_files_one_hears_where_to_get_them(tmp_path):
    with pytest.raises(
        MissingData, match=r"cifar10/data_batch_1\.zip.*cifar-10-batches-py/data_batch_1.*cifar-10-binary"
    ):
        CIFAR10().load(tmp_path)


def test_the_pickled_batches_are_found(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    write_pickle(tmp_path / "cifar-10-batches-py" / "data_batch_3")
    with pytest.raises(
        CorruptData, match=r"data_batch_3 .*data should be 10000 rows of 3072 bytes, it is uint8 of shape"
    ):
        CIFAR10(batches=(3,)).load(tmp_path)


def test_the_living_are_told_from_things(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH", 200)
    (tmp_path / "cifar10").mkdir()
    for name in ("data_batch_1", "test_batch"):
        write_binary(tmp_path / "cifar10" / f"{name}.bin")
    loaded = CIFAR10(batches=(1,)).load(tmp_path)
    animals = {"bird", "cat", "deer", "dog", "frog", "horse"}
    for samples in (loaded.train, loaded.test):
        assert samples.s["living"].tolist() == [int(loaded.classes[y] in animals) for y in LABELS]


def test_arrays_rebuild_the_binary_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH", 200)
    (tmp_path / "cifar10").mkdir()
    write_sheets(tmp_path / "cifar10" / "data_batch_4.zip")
    write_binary(tmp_path / "cifar10" / "data_batch_2.bin", IMAGES[::-1], LABELS[::-1])
    write_binary(tmp_path / "cifar10" / "test_batch.bin", IMAGES, LABELS[::-1])
    source = CIFAR10(batches=(4, 2))
    rebuilt = source.rebuilt(source.load(tmp_path))
    write_binary(tmp_path / "cifar10" / "data_batch_4.bin")
    assert rebuilt == {
        name: hashlib.md5((tmp_path / "cifar10" / name).read_bytes()).hexdigest()
        for name in ("data_batch_4.bin", "data_batch_2.bin", "test_batch.bin")
    }


def test_a_label_beyond_the_classes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH", 200)
    (tmp_path / "cifar10").mkdir()
    for name in ("data_batch_1", "test_batch"):
        write_binary(tmp_path / "cifar10" / f"{name}.bin", labels=np.where(np.arange(200) == 7, 12, LABELS))
    with pytest.raises(ValueError, match="label 12 at train row 7 is out of range"):
        CIFAR10(batches=(1,)).load(tmp_path)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"labels.bin": b"\0" * 199}, r"labels\.bin should hold 200 labels, it has 199"),
        ({"labels.bin": None}, r"no item named 'labels\.bin'"),
        ({"001.webp": None}, r"no item named '001\.webp'"),
        ({"001.webp": b"not a picture"}, "WebP sheet in it is damaged"),
        ({"001.webp": webp(sheet(IMAGES[:100]))[:-500]}, "WebP sheet in it is damaged"),
        (
            {"001.webp": webp(sheet(IMAGES[:100]).crop((0, 0, 320, 288)))},
            r"\(320, 288\) pixels, not \(320, 320\)",
        ),
    ],
)
def test_a_bad_member_is_refused(tmp_path, members, words):
    with pytest.raises(CorruptData, match=words):
        read_batches([write_sheets(tmp_path / "a.zip", members)], 200)


def test_a_damaged_zip_is_refused(tmp_path):
    path = write_sheets(tmp_path / "a.zip")
    content = path.read_bytes()
    for bad, words in (
        (content[:-100], "not a zip file"),
        (b"", "not a zip file"),
        (content[:3000] + bytes(50) + content[3050:], "CRC"),
    ):
        path.write_bytes(bad)
        with pytest.raises(CorruptData, match=words):
            read_batches([path], 200)


@pytest.mark.parametrize("batches", [(), (0,), (6,), (1, 1), (1.5,), 3])
def test_batches_are_numbers_from_one_to_five(batches):
    with pytest.raises(ValueError, match=r"different numbers from 1 to 5, e\.g\. \(1, 2\); got"):
        CIFAR10(batches=batches)


def test_a_list_of_batches_can_be_typed():
    assert spec("CIFAR10(batches=[2, 1])", "data") == CIFAR10(batches=(2, 1))
