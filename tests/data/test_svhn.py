import builtins

import numpy as np
import pytest
import torch
from scipy.io import savemat

from cutlayer.data import SVHN
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.svhn import read_mat

X = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
Y = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1], dtype=np.uint8)[:, None]


def write(path, compressed=False, **arrays):
    savemat(path, {"X": X, "y": Y} | arrays, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_digits_read_back_and_ten_means_nought(tmp_path, compressed):
    samples = read_mat(write(tmp_path / "a.mat", compressed), 12)
    assert samples.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert samples.x.shape == (12, 3, 32, 32)
    assert samples.x.is_contiguous()
    for number in range(12):
        assert torch.equal(samples.x[number], torch.from_numpy(X[..., number]).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": X[..., :11]}, r"X should be bytes of 32 x 32 x 3 x 12, it is uint8 of \(32, 32, 3, 11\)"),
        ({"X": X.astype(float)}, "it is float64"),
        ({"y": Y[:11]}, "y should be 12 labels from 1 to 10"),
        ({"y": Y - 1}, "y should be 12 labels from 1 to 10"),
        ({"y": Y + 0.5}, "y should be 12 labels from 1 to 10"),
        ({"y": np.array(["a"] * 12, dtype=object)}, "y should be 12 labels from 1 to 10"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, words):
    with pytest.raises(CorruptData, match=words):
        read_mat(write(tmp_path / "a.mat", **arrays), 12)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_file_is_refused(tmp_path, compressed):
    path = write(tmp_path / "a.mat", compressed)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[:100], whole[: len(whole) // 2], whole[:-300]):
        path.write_bytes(content)
        with pytest.raises(CorruptData, match=r"a\.mat is not usable: not a MATLAB 5 file with X and y"):
            read_mat(path, 12)


def test_a_file_without_labels_is_refused(tmp_path):
    savemat(tmp_path / "a.mat", {"X": X})
    with pytest.raises(CorruptData, match=r"with X and y \('y'\)"):
        read_mat(tmp_path / "a.mat", 12)


def test_without_scipy_one_hears_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def no_scipy(name, *rest):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_scipy)
    with pytest.raises(MissingData, match="pip install scipy"):
        read_mat(tmp_path / "a.mat", 12)


@pytest.mark.parametrize("home", ["svhn/", "SVHN/", ""])
def test_the_files_are_found_and_their_size_checked(tmp_path, home):
    (tmp_path / home).mkdir(exist_ok=True)
    for name in ("train", "test"):
        write(tmp_path / home / f"{name}_32x32.mat")
    with pytest.raises(CorruptData, match=r"train_32x32\.mat .*32 x 32 x 3 x 73257"):
        SVHN().load(tmp_path)
