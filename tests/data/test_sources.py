"""What holds for every source, and the real files where they are at hand."""

import hashlib
from dataclasses import FrozenInstanceError

import pytest
import torch

from cutlayer import data
from cutlayer.data import CIFAR10, MNIST, Digits, FashionMNIST, Npz
from cutlayer.data.base import MissingData
from cutlayer.spec import names, spec, summary

SOURCES = [
    Digits(),
    Digits(limit=100),
    MNIST(),
    FashionMNIST(limit=7),
    CIFAR10(),
    CIFAR10(batches=(2,), limit=50),
    Npz(path="a/b.npz"),
    Npz("quote's.npz", limit=3),
]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_a_source_can_be_typed(source):
    assert spec(repr(source), "data") == source
    assert hash(spec(repr(source), "data")) == hash(source)
    with pytest.raises(FrozenInstanceError):
        source.limit = 1


def test_a_source_shows_what_was_chosen():
    assert repr(CIFAR10(batches=(2,), limit=50)) == "CIFAR10(batches=(2,), limit=50)"
    assert repr(Digits()) == "Digits()"


def test_the_list_says_what_each_is():
    assert sorted(names("data")) == ["CIFAR10", "Digits", "FashionMNIST", "MNIST", "Npz"]
    for thing in names("data").values():
        assert len(summary(thing)) > 40
        assert "\n" not in summary(thing)


def test_what_code_needs_is_importable_but_cannot_be_typed():
    assert data.Samples
    assert data.parts
    with pytest.raises(ValueError, match="there is no 'Samples' among the data"):
        spec("Samples()", "data")


@pytest.mark.parametrize("limit", [0, -5, 2.5, "3"])
def test_a_limit_is_a_positive_whole_number(limit):
    with pytest.raises(ValueError, match="limit is how many training samples to keep, at least 1; got"):
        Digits(limit=limit)


def test_a_limit_keeps_classes_balanced_and_the_test_set_whole():
    loaded = Digits(limit=105).load()
    counts = loaded.train.y.bincount(minlength=10)
    assert len(loaded.train) == 105
    assert set(counts.tolist()) == {10, 11}
    assert len(loaded.test) == 500
    assert torch.equal(loaded.train.x, Digits(limit=105).load().train.x)


def test_a_limit_beyond_the_set_is_refused():
    with pytest.raises(ValueError, match="limit=4501 is more than the 4500 training samples of Digits: lower it"):
        Digits(limit=4501).load()


def load_or_skip(source, folder):
    try:
        return source.load(folder)
    except MissingData as error:
        pytest.skip(str(error))


# 0.1307 is the mean in PyTorch's own MNIST example, 0.2860 the one in common use for Fashion-MNIST; the
# counts are those of the published sets.
@pytest.mark.parametrize(
    ("source", "mean", "counts"),
    [
        (MNIST(), 0.1307, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        (FashionMNIST(), 0.2860, [1000] * 10),
    ],
    ids=repr,
)
def test_the_real_idx_sets(data_folder, source, mean, counts):
    loaded = load_or_skip(source, data_folder)
    assert loaded.train.x.shape == (60_000, 1, 28, 28)
    assert loaded.test.x.shape == (10_000, 1, 28, 28)
    assert len(loaded.classes) == 10
    assert loaded.train.x.double().mean().item() / 255 == pytest.approx(mean, abs=5e-5)
    assert loaded.test.y.bincount().tolist() == counts


def test_one_real_cifar10_batch(data_folder):
    loaded = load_or_skip(CIFAR10(batches=(1,)), data_folder)
    # md5 of data_batch_1.bin and test_batch.bin in the official cifar-10-binary.tar.gz.
    for samples, digest in (
        (loaded.train, "5dd7e06a14cb22eb9f671a540d1b7c25"),
        (loaded.test, "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ):
        records = torch.cat([samples.y.to(torch.uint8)[:, None], samples.x.flatten(1)], 1)
        assert hashlib.md5(records.numpy().tobytes()).hexdigest() == digest
