import numpy as np
import pytest
import torch

from cutlayer.data import Npz
from cutlayer.data.base import CorruptData, MissingData, overlap

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 256, (40, 3, 5, 6), dtype=np.uint8)
Y = np.arange(40) % 4


@pytest.fixture
def saved(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return Npz(str(tmp_path / "mine.npz"))

    return save


def test_everything_reads_back(saved):
    who = np.arange(40) // 4
    source = saved(
        **{"x": X, "y": Y, "s_sex": Y % 2, "identity": who},
        **{"x_test": X[:8], "y_test": Y[:8], "s_sex_test": Y[:8] % 2, "identity_test": who[:8]},
        classes=np.array(["a", "b", "c", "d"]),
    )
    loaded = source.load()
    for samples, count in ((loaded.train, 40), (loaded.test, 8)):
        assert torch.equal(samples.x, torch.from_numpy(X[:count]))
        assert samples.y.tolist() == Y[:count].tolist()
        assert {name: values.tolist() for name, values in samples.s.items()} == {"sex": (Y[:count] % 2).tolist()}
        assert samples.identity.tolist() == who[:count].tolist()
    assert loaded.classes == ("a", "b", "c", "d")


def test_each_row_knows_its_place_in_the_arrays(saved):
    whole, two = saved(x=X, y=Y).load(), saved(x=X, y=Y, x_test=X[:8], y_test=Y[:8]).load()
    for part in (whole.train, whole.test):
        assert torch.equal(torch.from_numpy(X)[part.places], part.x)
    assert two.test.places.tolist() == list(range(8))


def test_a_tenth_of_every_class_is_set_aside_when_there_is_no_test_set(saved):
    loaded = saved(x=X, y=Y, s_sex=Y % 2).load()
    assert loaded.test.y.bincount().tolist() == [1] * 4
    assert len(loaded.train) == 36
    assert overlap(loaded.train, loaded.test) == 0
    assert torch.equal(loaded.test.s["sex"], loaded.test.y % 2)
    assert torch.equal(loaded.test.x, Npz(saved(x=X, y=Y).path).load().test.x)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ((4, 28, 28), (4, 1, 28, 28)),
        ((4, 28, 28, 3), (4, 3, 28, 28)),
        ((4, 28, 28, 1), (4, 1, 28, 28)),
        ((4, 3, 28, 28), (4, 3, 28, 28)),
        ((4, 3, 28, 3), (4, 3, 28, 3)),
        ((4, 1, 28, 28), (4, 1, 28, 28)),
        ((4, 5, 28, 28), (4, 5, 28, 28)),
        ((4, 17), (4, 17)),
    ],
)
def test_the_layout_of_images_is_told_by_their_shape(saved, given, read):
    x = RANDOM.integers(0, 256, given, dtype=np.uint8)
    loaded = saved(x=x, y=np.arange(4), x_test=x, y_test=np.arange(4)).load()
    assert loaded.train.x.shape == read
    assert loaded.train.x.is_contiguous()
    if given[1:] == (28, 28, 3):
        assert torch.equal(loaded.train.x, torch.from_numpy(x).permute(0, 3, 1, 2))


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.float64, np.float16])
def test_numbers_of_any_width_become_bytes_or_floats(saved, kind):
    x = X.astype(kind) if np.issubdtype(kind, np.integer) else (X / 255).astype(kind)
    read = saved(x=x, y=Y.astype(np.float32), x_test=x, y_test=Y.astype(np.uint8)).load().train
    assert read.x.dtype == (torch.uint8 if np.issubdtype(kind, np.integer) else torch.float32)
    assert read.y.dtype == torch.int64
    torch.testing.assert_close(read.images(), torch.from_numpy(X) / 255, rtol=0, atol=1e-3)


def test_a_path_is_meant_from_here_or_from_the_data_folder(saved, tmp_path, monkeypatch):
    saved(x=X, y=Y)
    monkeypatch.chdir(tmp_path)
    assert len(Npz("mine.npz").load().train) == 36
    monkeypatch.chdir("/")
    assert len(Npz("mine.npz").load(tmp_path).train) == 36
    with pytest.raises(MissingData, match=r"there is no other\.npz in"):
        Npz("other.npz").load(tmp_path)


def swapped(array, row, value):
    array = array.astype(type(value))
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": X, "labels": Y}, "it has no array 'x', only images, labels"),
        ({"x": X}, "it has no array 'y', only x"),
        ({"x": X, "y": Y, "x_test": X}, "it has no array 'y_test'"),
        ({"x": X.astype(int) + 1, "y": Y}, r"whole numbers 0\.\.255 or floats 0\.\.1; found other int64"),
        ({"x": X.astype(str), "y": Y}, "images must be whole numbers"),
        ({"x": X[0, 0, 0], "y": Y[:6]}, r"x must be \(N, H, W\).* it is \(6,\)"),
        ({"x": X.astype(np.float32), "y": Y}, r"floats must lie in \[0, 1\]; found 0 to 255"),
        ({"x": X[:30], "y": Y}, "x has 30 rows and y has 40: there is one label for every sample"),
        (
            {"x": X, "y": Y.astype(str)},
            "y must hold numbers, not <U.*: number the classes from 0 and name them in an array `classes`",
        ),
        ({"x": X, "y": swapped(Y, 9, 1.5)}, "label 1.5 at train row 9 is not a whole number"),
        ({"x": X, "y": swapped(Y, 9, np.nan)}, "label nan at train row 9 is not a whole number"),
        ({"x": X, "y": swapped(Y, 9, -1)}, "label -1 at train row 9 is out of range"),
        ({"x": X, "y": swapped(Y, 9, 2**60)}, f"without a gap, but 4 is missing and {2**60} is there"),
        ({"x": X, "y": Y + 1}, "without a gap, but 0 is missing and 4 is there: number them again"),
        ({"x": X, "y": Y, "classes": np.array(["a", "b"])}, "label 2 at train row 2 .* 2 classes 0..1"),
        ({"x": X / 255 * np.nan, "y": Y}, "x at train row 0 holds NaN or Inf"),
        ({"x": X, "y": Y, "s_age": Y[:3]}, "40 images but 3 values of attribute 'age'"),
        ({"x": X[:1], "y": Y[:1]}, "one sample cannot be both"),
        ({"x": X[:0], "y": Y[:0]}, "the train set is empty"),
        ({"x": X, "y": np.array([object()] * 40)}, "it holds Python objects, which could run code"),
    ],
)
def test_bad_arrays_are_refused(saved, arrays, words):
    with pytest.raises(ValueError, match=words):
        saved(**arrays).load()


def test_a_file_that_is_no_archive_is_refused(saved, tmp_path):
    path = tmp_path / "mine.npz"
    whole = (saved(x=X, y=Y), path.read_bytes())[1]
    for content in (b"", b"hello", whole[:-30], whole[:2000] + b"\1" * 9 + whole[2009:]):
        path.write_bytes(content)
        with pytest.raises(CorruptData, match=r"mine\.npz is not usable: not an \.npz archive of plain arrays"):
            Npz(str(path)).load()
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(CorruptData, match=r"a single array, not an archive: write it with numpy\.savez"):
        Npz(str(path)).load()


@pytest.mark.parametrize("padding", [0, -100])
def test_next_tokens_that_are_padding_are_no_labels_and_every_id_is_a_class(tmp_path, padding):
    """Padding that counts is guessed right every time, and no perplexity means anything."""
    x = np.array([[1, 7, 3, 4, 0, 0]] * 6)
    y = np.array([[7, 3, 4, padding, padding, padding]] * 6)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    loaded = Npz("a.npz", vocabulary=9).load(tmp_path)
    for samples in (loaded.train, loaded.test):
        assert samples.y[0].tolist() == [7, 3, 4, -100, -100, -100]
    assert len(loaded.classes) == 9, "words that these texts lack are classes, too"
