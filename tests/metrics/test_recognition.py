"""Identification: blind to contrast, brightness and sign, and no better than chance where nothing is shown."""

import pytest
import torch

from cutlayer.metrics.images import ncc
from cutlayer.metrics.recognition import identified, likeness

GALLERY = torch.rand(30, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seen", [lambda x: x, lambda x: 1 - x, lambda x: 0.4 + 0.01 * x, lambda x: 0.6 - 0.1 * x])
def test_contrast_brightness_and_sign_take_nothing_away(seen):
    assert identified(GALLERY, seen(GALLERY)).tolist() == [1] * 30


def test_likeness_is_the_correlation_of_each_two():
    alike = likeness(GALLERY[:4], GALLERY)
    assert alike.shape == (4, 30)
    twin = torch.stack([ncc(picture.expand_as(GALLERY), GALLERY).abs() for picture in GALLERY[:4]])
    assert torch.allclose(alike, twin)


def test_what_shows_nothing_scores_chance():
    """Also where a constant picture is not quite constant, or is the same for all."""
    for blank in (torch.zeros_like(GALLERY), torch.full_like(GALLERY, 0.3)):
        assert identified(GALLERY, blank).tolist() == pytest.approx([1 / 30] * 30)
    same = GALLERY[:1].expand_as(GALLERY)
    assert identified(GALLERY, same).mean() == pytest.approx(1 / 30)


def test_equal_images_share_a_hit():
    twins = torch.cat([GALLERY[:5], GALLERY[:5]])
    assert identified(twins, twins).tolist() == [0.5] * 10


def test_a_picture_of_another_image_is_no_hit():
    assert identified(GALLERY, GALLERY.roll(1, 0)).sum() == 0


def test_pictures_are_of_the_first_images():
    assert identified(GALLERY, GALLERY[:7]).tolist() == [1] * 7
    with pytest.raises(ValueError, match="31 pictures were made of at most as many images; there are 30"):
        identified(GALLERY, torch.cat([GALLERY, GALLERY[:1]]))
