import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.cifar10 import CIFAR10, read_batches
from cutlayer.spec import spec

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


@pytest.mark.parametrize(("write", "name"), [(write_binary, "a.bin"), (write_sheets, "a.zip")])
def test_both_forms_read_back_what_was_written(tmp_path, write, name):
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


def test_without_files_one_hears_where_to_get_them_and_why_not_pickle(tmp_path):
    with pytest.raises(MissingData, match=r"cifar10/data_batch_1\.zip.*cifar-10-binary.*pickled"):
        CIFAR10().load(tmp_path)


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
