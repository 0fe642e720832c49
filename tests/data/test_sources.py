"""What holds for every source, and the real files where they are at hand."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from cutlayer import data
from cutlayer.core.spec import names, spec, summary
from cutlayer.data import (
    CIFAR10,
    CIFAR100,
    COCO,
    FFHQ,
    GTSRB,
    IMDB,
    MNIST,
    SVHN,
    VOC,
    CelebA,
    Digits,
    Faces,
    FairFace,
    Fashion,
    FashionMNIST,
    ImageFolder,
    ImageNet,
    MNISTRows,
    Npz,
    Reviews,
    Scenes,
    Table,
    Texts,
    TinyImageNet,
    Unlabelled,
    UTKFace,
)
from cutlayer.data.base import MissingData, Source, overlap, parts

SOURCES = [
    Digits(),
    Digits(limit=100),
    Fashion(limit=20),
    MNIST(),
    MNISTRows(limit=7),
    FashionMNIST(limit=7),
    CIFAR10(),
    CIFAR10(batches=(2,), limit=50),
    Scenes(),
    Scenes(most=2, limit=20),
    Npz(path="a/b.npz"),
    Npz("quote's.npz", limit=3),
    CIFAR100(),
    CIFAR100(fine=False, limit=9),
    SVHN(limit=10),
    GTSRB(),
    TinyImageNet(),
    TinyImageNet(size=64),
    UTKFace(),
    UTKFace(target="age_group", distinct=True, skip_broken=True, limit=7),
    ImageFolder("a/b"),
    ImageFolder(path="a", size=32, limit=5),
    CelebA(),
    CelebA("Young", attributes=("Male", "Smiling"), size=(218, 178), held="valid", skip_broken=True, limit=5),
    FairFace(),
    FairFace("race", size=32, skip_broken=True, limit=5),
    FFHQ(),
    FFHQ(size=128, skip_broken=True, limit=5),
    Unlabelled("a"),
    Unlabelled(path="a", size=(32, 24), skip_broken=True, limit=5),
    ImageFolder(path="a", skip_broken=True),
    ImageNet(),
    ImageNet(size=64, crop=1.0, skip_broken=True, limit=5, augment="flip"),
    VOC(),
    VOC(size=64, train="trainaug", masks="SegmentationClassAug", limit=5),
    COCO(),
    COCO(size=64, least=1001, limit=5),
    Npz("folder", ignore=255),
    Faces("img", "list.csv", "Smiling"),
    Faces(
        "img",
        "list.csv",
        "Smiling",
        attributes=("Male", "Young"),
        identity="person",
        size=32,
        skip_broken=True,
        limit=5,
    ),
    Table("a.csv", "y"),
    Table("a.csv", target="y", attributes=("sex",), limit=5),
    Reviews(),
    Reviews(features=100, limit=5),
    IMDB(),
    IMDB(length=16, vocabulary=50, next_token=True, limit=5),
    Texts("a.jsonl"),
    Texts("a.csv", length=32, vocabulary=100, words="words.txt", text="said", label="who", test="b.csv", limit=5),
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
    # Every source is in the list, and everything in the list is tried above.
    assert set(names("data")) == {type(source).__name__ for source in SOURCES}
    for thing in names("data").values():
        assert 40 < len(summary(thing)) <= 114
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


@cache
def read(source, folder):
    """Several tests look at one set: each is read once."""
    return source.load(folder)


def load_or_skip(source, folder):
    try:
        return read(source, folder)
    except MissingData as error:
        pytest.skip(str(error))


# 0.1307 is the mean in PyTorch's own MNIST example, 0.2860 the one in common use for Fashion-MNIST, and those of
# CIFAR-10 are the published ones; the counts are those of the published sets.
full = partial(pytest.param, marks=pytest.mark.campaign)  # those that take long to read, or are read like another
MNIST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(
    ("source", "shape", "sizes", "mean", "counts"),
    [
        (MNIST(), (1, 28, 28), (60_000, 10_000), [0.1307], MNIST_COUNTS),
        full(FashionMNIST(), (1, 28, 28), (60_000, 10_000), [0.2860], [1000] * 10),
        full(CIFAR10(), (3, 32, 32), (50_000, 10_000), [0.49140, 0.48216, 0.44653], [1000] * 10),
        (CIFAR10(batches=(2,)), (3, 32, 32), (10_000, 10_000), None, [1000] * 10),
        (GTSRB(), (3, 32, 32), (2_580, 860), None, [20] * 43),
        (TinyImageNet(), (3, 32, 32), (7_200, 800), None, [4] * 200),
        (UTKFace(), (3, 64, 64), (3_200, 800), None, [400, 400]),
        full(UTKFace(target="race"), (3, 64, 64), (3_200, 800), None, [160] * 5),
        (Reviews(), (2048,), (8_000, 4_000), None, [2000, 2000]),
        full(CIFAR100(), (3, 32, 32), (50_000, 10_000), None, [100] * 100),
        full(SVHN(), (3, 32, 32), (73_257, 26_032), None, None),
    ],
    ids=lambda value: repr(value) if isinstance(value, Source) else "",
)
def test_the_real_sets_are_the_published_ones(data_folder, source, shape, sizes, mean, counts):
    loaded = load_or_skip(source, data_folder)
    assert (len(loaded.train), len(loaded.test)) == sizes
    assert loaded.train.x.shape[1:] == loaded.test.x.shape[1:] == shape
    if mean is not None:
        found = [loaded.train.x[:, colour].double().mean().item() / 255 for colour in range(len(mean))]
        assert found == pytest.approx(mean, abs=5e-5)
    if counts is not None:
        assert loaded.test.y.bincount().tolist() == counts
        assert len(loaded.classes) == len(counts)


# Decoded bytes, and the seconds of computing and the memory that reading them may take.
@pytest.mark.parametrize(
    ("source", "size"), [full(CIFAR10(), 60_000 * 3072), (FashionMNIST(), 70_000 * 784)], ids=repr
)
def test_reading_is_quick_and_small(data_folder, source, size):
    if not Path("/proc/self/status").is_file():
        pytest.skip("the peak of a process is read from /proc/self/status, which is not here")
    if not any((data_folder / place).is_file() for place in source.about.places(0)):
        pytest.skip(f"{data_folder} has no {source}")
    code = (
        "import re, sys, time, torch; from pathlib import Path; torch.set_num_threads(1)\n"
        "from cutlayer.core.spec import spec; import PIL.WebPImagePlugin\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) * 1024\n"
        "source = spec(sys.argv[1], 'data'); before, began = peak(), time.process_time()\n"
        "loaded = source.load(Path(sys.argv[2])); print(time.process_time() - began, peak() - before)"
    )
    command = [sys.executable, "-c", code, repr(source), str(data_folder)]
    seconds, memory = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert seconds <= 10
    assert size * 0.9 <= memory <= size * 1.5


def test_words_of_real_reviews_tell_good_from_bad(data_folder):
    loaded = load_or_skip(Reviews(), data_folder)
    x, y = loaded.train.x, loaded.train.y * 2.0 - 1
    # Ridge regression: a linear reader in closed form.
    weights = torch.linalg.solve(x.T @ x + 0.3 * torch.eye(x.shape[1]), x.T @ y)
    right = ((loaded.test.x @ weights > 0) == (loaded.test.y == 1)).float().mean()
    assert right > 0.78


def test_faces_of_the_real_set_differ_by_gender(data_folder):
    loaded = load_or_skip(UTKFace(), data_folder)
    # The mean faces of the two genders part the test set well above chance: pictures and facts belong together.
    means = torch.stack([loaded.train.images()[loaded.train.y == label].mean(0) for label in (0, 1)])
    far = torch.stack([(loaded.test.images() - mean).flatten(1).norm(dim=1) for mean in means])
    assert (far.argmin(0) == loaded.test.y).float().mean() > 0.58
    assert loaded.train.s["age"].min() >= 18


def test_copies_in_a_real_set_can_be_kept_from_both_sides(data_folder):
    loaded = load_or_skip(UTKFace(distinct=True), data_folder)
    assert 3_150 < len(loaded.train) < 3_200
    assert len(loaded.test) == 800
    cut = parts(loaded, aux=1440, val=0.1, seed=0)
    assert overlap(cut.private, cut.aux) == overlap(cut.private, cut.test) == 0
    # Otherwise some faces would be on both sides, and an audit would refuse.
    cut = parts(load_or_skip(UTKFace(), data_folder), aux=1440, val=0.1, seed=0)
    assert overlap(cut.private, cut.aux) > 0
