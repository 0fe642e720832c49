"""The images that come with the package: whole, balanced, and those of the published set."""

import hashlib

import pytest
import torch

from cutlayer.data import Fashion, FashionMNIST
from cutlayer.data.base import MissingData, overlap
from cutlayer.data.fashion import FOLDER


@pytest.fixture(scope="module")
def loaded():
    return Fashion().load()


def test_each_class_has_its_share_and_the_first_rows_are_a_mixture(loaded):
    assert loaded.train.y.bincount().tolist() == [450] * 10 and loaded.test.y.bincount().tolist() == [50] * 10
    assert loaded.train.x.shape == (4500, 1, 28, 28) and overlap(loaded.train, loaded.test) == 0
    assert len(loaded.train.y[:50].unique()) >= 8 and len(loaded.test.y[:50].unique()) >= 8


def test_the_file_is_the_one_that_was_checked():
    content = (FOLDER / "fashion-images-idx3-ubyte.gz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "43293cd6d291761cb070201552a541a0c46b16bafbee82af7bcbff102286ec78"


def test_the_licence_lies_beside_the_images():
    assert "MIT License" in (FOLDER / "LICENSE-fashion-mnist.txt").read_text()
    assert "1708.07747" in (FOLDER / "README.md").read_text()


def test_they_are_the_first_of_each_class_of_the_published_training_file(loaded):
    try:
        whole = FashionMNIST().load().train
    except MissingData:
        pytest.skip("the whole set is not here")
    rows = torch.cat([(whole.y == label).nonzero().flatten()[:500] for label in range(10)]).sort().values
    ours = torch.cat([loaded.train.x, loaded.test.x]).flatten(1)
    assert torch.equal(ours.unique(dim=0), whole.x[rows].flatten(1).unique(dim=0))
