"""Signals from an .npz: (N, channels, length), any floats."""

import numpy as np
import pytest
import torch

from cutlayer.data import Npz, mnist_rows
from cutlayer.data.base import CorruptData, Loaded, Samples


def write(path, x):
    np.savez(path, x=x, y=np.arange(len(x)) % 2)
    return Npz(path=str(path), signals=True)


def test_signals_keep_their_shape_and_values(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2, 9)).astype(np.float32) * 7
    loaded = write(tmp_path / "a.npz", x).load()
    assert loaded.train.x.shape[1:] == (2, 9) and loaded.train.x.dtype == torch.float32
    assert len(loaded.train) + len(loaded.test) == 40
    assert loaded.train.images().abs().max() > 3


@pytest.mark.parametrize(
    "x", [np.zeros((4, 9)), np.zeros((4, 2, 3, 3)), np.full((4, 2, 3), "a")], ids=["flat", "images", "words"]
)
def test_what_is_not_a_signal_is_refused(tmp_path, x):
    with pytest.raises(CorruptData, match="signals are numbers of shape"):
        write(tmp_path / "a.npz", x).load()


def test_digits_row_by_row_have_a_channel_for_each_column(monkeypatch):
    pixels = torch.arange(2 * 784).remainder(251).to(torch.uint8).reshape(2, 1, 28, 28)
    images = Samples(pixels, torch.arange(2))
    monkeypatch.setattr(mnist_rows.MNIST, "read", lambda self, folder: Loaded(images, images, ("0", "1")))
    loaded = mnist_rows.MNISTRows().load()
    assert loaded.train.x.shape == (2, 28, 28) and loaded.train.x.is_contiguous()
    assert loaded.test.x[1, 3, 20] == pixels[1, 0, 20, 3] / 255
