"""Likeness of series: the shape of a curve counts, not its level, size or sign."""

import math

import pytest
import torch

from cutlayer.metrics.series import correlation, correlation_either, scores, spectral_error

TIME = torch.linspace(0, 1, 64)
WAVES = torch.stack([torch.stack([(2 * math.pi * (k + 1) * TIME).sin(), TIME**k]) for k in range(1, 4)])


def test_an_exact_copy_is_1_and_has_the_same_spectrum():
    told = scores(WAVES, WAVES)
    assert told["correlation"] == pytest.approx(1) and told["correlation_p90"] == pytest.approx(1)
    assert told["spectral_error"] == pytest.approx(0, abs=1e-9)


def test_level_and_size_of_a_channel_do_not_matter():
    other = WAVES * torch.tensor([3.0, 0.2])[:, None] + torch.tensor([5.0, -1.0])[:, None]
    assert correlation(WAVES, other) == pytest.approx(torch.ones(3))


def test_the_mirror_image_gives_away_what_the_curve_would():
    assert correlation(WAVES, -WAVES).tolist() == pytest.approx([-1] * 3)
    assert correlation_either(WAVES, -WAVES).tolist() == pytest.approx([1] * 3)


def test_a_flat_line_is_like_nothing():
    flat = torch.zeros_like(WAVES)
    assert correlation(WAVES, flat).tolist() == [0.0] * 3 and correlation(flat, WAVES).tolist() == [0.0] * 3
    assert spectral_error(WAVES, flat).tolist() == pytest.approx([1.0] * 3)


def test_channels_that_never_change_are_left_out_of_the_mean():
    truth = WAVES.clone()
    truth[:, 1] = 2.0
    assert correlation(truth, WAVES).tolist() == pytest.approx([1] * 3)


def test_a_shifted_wave_has_another_shape_and_the_same_rhythm():
    wave = (2 * math.pi * 4 * torch.arange(64) / 64).sin()[None, None]
    shifted = wave.roll(4, 2)  # a quarter of a period
    assert abs(float(correlation(wave, shifted))) < 1e-5 and float(spectral_error(wave, shifted)) < 1e-5


def test_series_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="channels, length"):
        correlation(WAVES, WAVES[:, :1])
