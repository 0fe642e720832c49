"""Augmented images are the same images, a few pixels away; a reader that goes on with them keeps none of them."""

import pickle

import pytest
import torch
from torch.nn.functional import pad

from cutlayer.data.augment import NUDGE, nudged
from cutlayer.metrics.images import ssim
from cutlayer.metrics.readers import ConvReader, fit, fit_on


def cuttings(image, mirrored):
    """All that an image may become, written out."""
    wide = pad(image[None], (NUDGE,) * 4, mode="replicate")[0]
    height, width = image.shape[1:]
    found = [wide[:, r : r + height, c : c + width] for r in range(2 * NUDGE + 1) for c in range(2 * NUDGE + 1)]
    return found + [one.flip(2) for one in found] * mirrored


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 9, 14)])
def test_each_is_its_own_image_moved_and_mirrored_where_asked(shape, mirrored):
    torch.manual_seed(0)
    images = torch.rand(200, *shape)
    made = nudged(images, mirror=mirrored)
    which = []
    for image, one in zip(images, made, strict=True):
        same = [place for place, cutting in enumerate(cuttings(image, mirrored)) if torch.equal(cutting, one)]
        assert len(same) == 1
        which += same
    everywhere = (2 * NUDGE + 1) ** 2 * (1 + mirrored)
    assert len(set(which)) > 0.8 * everywhere and max(which) >= everywhere - 3


def test_going_on_makes_pictures_more_alike_and_leaves_the_first_reader_as_it_was():
    torch.manual_seed(0)
    images = torch.nn.functional.interpolate(torch.rand(300, 1, 4, 4), size=(12, 12), mode="bilinear")
    seen = torch.nn.functional.avg_pool2d(images, 2).repeat(1, 3, 1, 1)
    first = fit(ConvReader((3, 6, 6), (1, 12, 12), 8), seen[:250], images[:250], steps=20)
    before, guess = pickle.dumps(first), first(seen[250:])
    draws = []
    on = fit_on(first, lambda: draws.append(1) or (seen[:250], images[:250]), steps=40, rounds=4, batch=32)
    assert len(draws) == 4, "fresh pairs in each round"
    assert pickle.dumps(first) == before and torch.equal(on.mean, first.mean)
    assert ssim(images[250:], on(seen[250:])).mean() > ssim(images[250:], guess).mean() + 0.01
    written = pickle.dumps(on)
    assert not any(row.numpy().tobytes() in written for row in (*images, *seen))
