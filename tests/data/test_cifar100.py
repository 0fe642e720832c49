import pickle

import numpy as np
import pytest
import torch

from cutlayer.data import CIFAR100
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.cifar100 import COARSE, FINE, read_file

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
COARSE_Y, FINE_Y = (RANDOM.integers(0, kinds, 30, dtype=np.uint8) for kinds in (20, 100))


def write_binary(path):
    records = np.concatenate([COARSE_Y[:, None], FINE_Y[:, None], IMAGES.reshape(30, -1)], 1)
    path.write_bytes(records.tobytes())
    return path


def write_pickle(path):
    content = {"data": IMAGES.reshape(30, -1), "fine_labels": FINE_Y.tolist(), "coarse_labels": COARSE_Y.tolist()}
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


@pytest.mark.parametrize("fine", [True, False])
@pytest.mark.parametrize(("write", "name"), [(write_binary, "train.bin"), (write_pickle, "train")])
def test_both_forms_give_classes_and_kinds(tmp_path, write, name, fine):
    samples = read_file(write(tmp_path / name), 30, fine)
    assert torch.equal(samples.x, torch.from_numpy(IMAGES))
    assert samples.y.tolist() == (FINE_Y if fine else COARSE_Y).tolist()


def test_names_are_the_official_ones():
    assert len(set(FINE)) == 100 and len(set(COARSE)) == 20
    # The official order is that of the alphabet.
    assert list(FINE) == sorted(FINE) and list(COARSE) == sorted(COARSE)
    assert (FINE[0], FINE[39], FINE[99]) == ("apple", "keyboard", "worm")
    assert (COARSE[0], COARSE[9], COARSE[19]) == ("aquatic_mammals", "large_man-made_outdoor_things", "vehicles_2")


@pytest.mark.parametrize("home", ["cifar100", "cifar-100-binary"])
def test_a_file_of_another_size_is_not_cifar100(tmp_path, home):
    (tmp_path / home).mkdir()
    for name in ("train.bin", "test.bin"):
        write_binary(tmp_path / home / name)
    with pytest.raises(CorruptData, match=r"train\.bin .*50000 images take 153700000 bytes, the file has 92220"):
        CIFAR100().load(tmp_path)


def test_the_pickled_form_is_found_and_its_size_checked(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        write_pickle(tmp_path / "cifar-100-python" / name)
    with pytest.raises(CorruptData, match="data should be 50000 rows of 3072 bytes"):
        CIFAR100(fine=False).load(tmp_path)


def test_a_missing_test_file_is_reported_before_the_training_file_is_read(tmp_path):
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.bin").write_bytes(b"")
    with pytest.raises(MissingData, match=r"there is no cifar100/test\.bin .*cifar-100-python/test.*cifar\.html"):
        CIFAR100().load(tmp_path)
