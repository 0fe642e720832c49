import gzip
import struct

import numpy as np
import pytest
import torch

from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.fashion_mnist import HOMES as FASHION_HOMES
from cutlayer.data.idx import read_idx, read_split
from cutlayer.data.mnist import HOMES, MNIST

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.uint8)


def idx(array, kind=8):
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write(folder, end="", images=IMAGES, labels=LABELS):
    folder.mkdir(parents=True)
    pack = gzip.compress if end else bytes
    (folder / f"train-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
    (folder / f"train-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))


@pytest.mark.parametrize("end", [".gz", ""])
@pytest.mark.parametrize("home", HOMES + FASHION_HOMES)
def test_every_layout_reads_back_what_was_written(tmp_path, home, end):
    write(tmp_path / home, end)
    samples = read_split(tmp_path, HOMES if home in HOMES else FASHION_HOMES, "train", 7, "")
    assert torch.equal(samples.x, torch.from_numpy(IMAGES)[:, None])
    assert samples.x.dtype == torch.uint8
    assert samples.y.tolist() == list(range(7))


def test_the_two_sets_are_not_mixed_up(tmp_path):
    write(tmp_path / "fashion-mnist")
    with pytest.raises(MissingData, match=r"there is no mnist/train-images-idx3-ubyte\.gz"):
        MNIST().load(tmp_path)


def test_missing_labels_are_reported_before_the_images_are_read(tmp_path):
    write(tmp_path / "mnist", ".gz")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    with pytest.raises(MissingData, match="train-labels-idx1-ubyte"):
        read_split(tmp_path, HOMES, "train", 7, "")


def test_a_set_of_another_size_is_not_mnist(tmp_path):
    write(tmp_path / "mnist", ".gz")
    with pytest.raises(CorruptData, match="should hold 60000 x 28 x 28 values, its header says 7 x 28 x 28"):
        MNIST().load(tmp_path)


WHOLE = idx(IMAGES)
ZIPPED = gzip.compress(WHOLE)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a", WHOLE[:-1], "should hold 5488 values, it has fewer"),
        ("a", WHOLE + b"\0", "should hold 5488 values, it has more"),
        ("a", WHOLE[:9], "its header says 7"),
        ("a", b"", "starts with 00000803"),
        ("a", idx(IMAGES, kind=13), "starts with 00000803, this one 00000d03"),
        ("a", idx(LABELS), "starts with 00000803, this one 00000801"),
        ("a", idx(IMAGES[:6]), "header says 6 x 28 x 28"),
        ("a", struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 28), "header says 4294967295 x"),
        ("a", ZIPPED, "starts with 00000803, this one 1f8b"),
        ("a.gz", ZIPPED[:-20], "gzip stream is damaged or cut short"),
        ("a.gz", ZIPPED[:-8] + bytes(8), "gzip stream is damaged .*CRC"),
        ("a.gz", ZIPPED[:500] + bytes(9) + ZIPPED[509:], "gzip stream is damaged"),
        ("a.gz", WHOLE, "gzip stream is damaged .*[Nn]ot a gzipped file"),
        ("a.gz", gzip.compress(WHOLE[:-1]), "it has fewer"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_a_damaged_file_is_refused_and_named(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=words) as caught:
        read_idx(path, IMAGES.shape)
    assert str(path) in str(caught.value)
