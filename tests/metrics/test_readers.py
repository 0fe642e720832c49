"""Readers as things: they can be written down, they standardise as they were trained, and they hold no data."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cutlayer.core.batch import Batch, Task
from cutlayer.core.seeds import seeded
from cutlayer.data import Digits
from cutlayer.guards import LightSplit
from cutlayer.metrics.readers import Before, ConvReader, Linear, MLPReader, Standardised, fit, ridge, start_at


def pair(count=40, shape=(3, 6, 6)):
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(count, *shape, generator=draw)
    images = torch.rand(count, 1, 12, 12, generator=draw)
    return seen, images


def made():
    seen, images = pair()
    flat = seen.flatten(1)
    torch.manual_seed(0)
    return {
        "ridge": (ridge(seen, images, seen[:5], images[:5]), seen),
        "conv": (fit(ConvReader((3, 6, 6), (1, 12, 12), 8), seen, images, steps=5), seen),
        "mlp": (Before(nn.Flatten(), fit(MLPReader((108,), (1, 12, 12), 8), flat, images, steps=5)), seen),
    }


@pytest.mark.parametrize("name", ["ridge", "conv", "mlp"])
def test_a_reader_can_be_written_down_without_the_data_it_was_trained_on(name):
    reader, seen = made()[name]
    written = pickle.dumps(reader)
    assert torch.equal(pickle.loads(written)(seen), reader(seen))
    _, images = pair()
    assert not any(row.numpy().tobytes() in written for row in (*images, *seen))


@pytest.mark.parametrize("cut", [(2, 12, 16), (2, 4, 3), (2, 1, 9), (2, 16, 16), (2, 5, 5)])
@pytest.mark.parametrize("image", [(1, 12, 12), (3, 13, 11)])
def test_a_map_of_any_sides_is_read_as_an_image(cut, image):
    """A linear layer on the rows of an image makes a map that is wider, or narrower, than the image."""
    assert ConvReader(cut, image, 16)(torch.randn(2, *cut)).shape == (2, *image)


def test_linear_is_an_affine_map_and_cuts_pixels_only_if_asked():
    weights, offset = torch.randn(6, 4).double(), torch.full((4,), 5.0).double()
    z = torch.randn(3, 6)
    plain = (z.double() - 1) @ weights + offset
    for clamp, expected in ((False, plain), (True, plain.clamp(0, 1))):
        reader = Linear(weights, torch.ones(6).double(), offset, (1, 2, 2), clamp)
        torch.testing.assert_close(reader(z), expected.float().reshape(3, 1, 2, 2))


def test_inputs_are_standardised_in_chunks_and_dropout_is_off():
    network = nn.Sequential(nn.Dropout(0.9), nn.Identity())
    mean, std = torch.tensor([[1.0, -2.0]]), torch.tensor([[2.0, 4.0]])
    z = torch.randn(300, 2)
    torch.testing.assert_close(Standardised(network, mean, std)(z), (z - mean) / std)


def test_a_step_may_come_first():
    z = torch.randn(4, 3)
    assert torch.equal(Before(None, nn.Identity())(z), z)
    assert Before(nn.Flatten(), nn.Identity())(torch.randn(4, 3, 2)).shape == (4, 6)


def test_another_loss_trains_a_classifier():
    torch.manual_seed(0)
    seen = torch.randn(200, 5)
    values = (seen[:, 0] > 0).long()
    reader = fit(nn.Linear(5, 2), seen, values, steps=200, rate=0.05, loss=cross_entropy, decay=1e-2)
    assert (reader(seen).argmax(1) == values).float().mean() > 0.95


def spots(count, seed):
    """Dark pictures with one bright square each, and what a random projection leaves of their maps once it is lifted
    back: no place of such a map shows what lies there, so a convolution finds nothing at first."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 1, 12, 12)
    for image, (row, column) in zip(images, torch.randint(0, 9, (count, 2), generator=draw), strict=True):
        image[0, row : row + 3, column : column + 3] = 1
    maps = nn.functional.avg_pool2d(images, 2).repeat(1, 4, 1, 1) * torch.rand(1, 4, 6, 6, generator=draw)
    basis = torch.linalg.qr(torch.randn(144, 36, generator=draw)).Q
    return (maps.flatten(1) @ basis @ basis.T).reshape(-1, 4, 6, 6), images


@pytest.mark.parametrize("seed", range(2))
def test_a_reader_of_dark_pictures_never_ends_in_one_blank_picture(seed):
    seen, images = spots(300, seed)
    torch.manual_seed(seed)
    guess = fit(ConvReader((4, 6, 6), (1, 12, 12), 16), seen[:260], images[:260], steps=50)(seen[260:])
    assert guess.std(0).mean() > 0.05, "what it draws hangs on the message"
    assert (guess - images[260:]).square().mean() < 0.7 * (images[:260].mean(0) - images[260:]).square().mean()


def test_behind_a_projection_of_digits_it_does_not_end_in_one_either():
    """LightSplit(32), lifted: from half grey all three hundred digits became one black picture within forty steps."""
    images, guard = nn.functional.avg_pool2d(Digits(limit=300).load().train.images(), 2), LightSplit(ratio=32)
    with seeded(1):
        z = nn.functional.max_pool2d(nn.Conv2d(1, 8, 3, padding=1)(images).relu(), 2).detach()
        sent = guard.build((8, 7, 7), 1, 2, Task((1, 14, 14), 10))(z, Batch(images, torch.zeros(300).long())).seen
        seen = guard.undo((8, 7, 7), 1)(sent).detach()
        guess = fit(ConvReader((8, 7, 7), (1, 14, 14), 8), seen[:260], images[:260], steps=40)(seen[260:])
    assert guess.std(0).mean() > 0.03, "what it draws hangs on the message"


@pytest.mark.parametrize(
    "make", [lambda: ConvReader((4, 6, 6), (3, 12, 12), 8), lambda: MLPReader((9,), (3, 12, 12), 8)]
)
def test_readers_start_with_the_brightness_of_the_images(make):
    reader, wanted = make(), torch.tensor([0.1, 0.5, 0.9])
    for network in (layer for layer in reader.modules() if isinstance(layer, nn.Linear | nn.Conv2d)):
        nn.init.zeros_(network.weight)
        nn.init.zeros_(network.bias)
    start_at(reader, wanted.view(1, 3, 1, 1).expand(5, 3, 12, 12))
    seen = torch.randn(2, 4, 6, 6) if isinstance(reader, ConvReader) else torch.randn(2, 9)
    torch.testing.assert_close(reader(seen).mean((0, 2, 3)), wanted)
