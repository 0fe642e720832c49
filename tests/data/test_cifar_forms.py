import pickle

import numpy as np
import pytest

from cutlayer.data.base import CorruptData
from cutlayer.data.cifar_forms import read_pickled, read_records

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([4, 0, 9, 1, 1], dtype=np.uint8)


def room():
    return np.zeros_like(IMAGES), np.zeros_like(LABELS)


@pytest.mark.parametrize(("before", "at"), [(1, 0), (2, 0), (2, 1)])
def test_a_label_is_read_at_its_place(tmp_path, before, at):
    heads = np.full((5, before), 77, np.uint8)
    heads[:, at] = LABELS
    (tmp_path / "a.bin").write_bytes(np.concatenate([heads, IMAGES.reshape(5, -1)], 1).tobytes())
    images, labels = room()
    read_records(tmp_path / "a.bin", images, labels, at, before)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


def write(folder, **changes):
    content = {b"data": IMAGES.reshape(5, -1), b"labels": LABELS.tolist(), b"filenames": [b"a"] * 5}
    content |= {key.encode(): value for key, value in changes.items()}
    path = folder / "batch"
    path.write_bytes(pickle.dumps({key: value for key, value in content.items() if value is not None}, protocol=2))
    return path


def test_a_pickled_batch_reads_back(tmp_path):
    images, labels = room()
    read_pickled(write(tmp_path, other=LABELS[::-1].tolist()), images, labels)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)
    read_pickled(tmp_path / "batch", images, labels, "other")
    assert np.array_equal(labels, LABELS[::-1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": None}, "it has no data, only filenames, labels"),
        ({"labels": None}, "it has no labels, only data, filenames"),
        ({"data": [1, 2]}, "data should be 5 rows of 3072 bytes, it is a list"),
        ({"data": IMAGES.reshape(5, -1)[:4]}, r"it is uint8 of shape \(4, 3072\)"),
        ({"data": IMAGES.reshape(5, -1).astype(float)}, "it is float64 of shape"),
        ({"labels": [1, 2]}, r"labels should be 5 small numbers, it is a list of 2"),
        ({"labels": [1, 2, 3, 4, 256]}, "labels should be 5 small numbers"),
        ({"labels": [1, 2, 3, 4, -1]}, "labels should be 5 small numbers"),
        ({"labels": [b"cat"] * 5}, "labels should be 5 small numbers"),
        ({"labels": [[1], [2, 3], [], 4, 5]}, "labels should be 5 small numbers"),
    ],
)
def test_a_batch_of_anything_else_is_refused(tmp_path, changes, words):
    with pytest.raises(CorruptData, match=words):
        read_pickled(write(tmp_path, **changes), *room())
