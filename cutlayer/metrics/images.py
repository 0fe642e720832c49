"""How alike two pictures are: pure figures on images in [0, 1], one value per image.

Every function takes float tensors (N, C, H, W) and returns N values in float64; the caller averages. PSNR,
above all, is averaged over images: the PSNR of the mean error is another, lower figure.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from .bootstrap import tail
from .lpips import foreground_lpips

CHUNK = 256  # images scored at once: ten thousand fit in memory
WINDOW = 11  # SSIM's Gaussian window, in pixels per side
FOREGROUND = 0.1  # a pixel of the true image brighter than this is foreground
PERFECT = 1e-10  # the least MSE that PSNR tells from 0: an exact copy scores 100 dB, not infinity
FLAT = 1e-6  # an image whose pixels deviate less is constant: rounding, not a picture
CONSTANT = 1e-3  # standard deviation across images below which they are all the same picture
ROUNDING = 1e-6  # undoing a normalisation may leave [0, 1] by this much


def mse(truth: Tensor, recon: Tensor) -> Tensor:
    """Mean squared error over all pixels and channels."""
    truth, recon = _pair(truth, recon)
    return (truth - recon).square().mean(dim=(1, 2, 3))


def psnr(truth: Tensor, recon: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB for the range 1, -10 log10 MSE, capped at 100 dB."""
    return _decibels(mse(truth, recon))


def ssim(truth: Tensor, recon: Tensor) -> Tensor:
    """Structural similarity (Wang et al., IEEE TIP 2004) over windows that lie wholly inside the image.

    Padding the border instead gives other numbers: on MNIST it rewards a blank image (.42 against .10).
    """
    return _ssim_map(truth, recon).mean(dim=(1, 2, 3))


def ncc(truth: Tensor, recon: Tensor) -> Tensor:
    """Pearson correlation over all pixels and channels, blind to scale and offset; 0 for a constant image."""
    truth, recon = _pair(truth, recon)
    a = (truth - truth.mean(dim=(1, 2, 3), keepdim=True)).flatten(1)
    b = (recon - recon.mean(dim=(1, 2, 3), keepdim=True)).flatten(1)
    spread_a, spread_b = a.square().mean(1).sqrt(), b.square().mean(1).sqrt()
    flat = (spread_a < FLAT) | (spread_b < FLAT)
    return torch.where(flat, 0.0, (a * b).mean(1) / (spread_a * spread_b).clamp_min(FLAT**2)).clamp(-1, 1)


def foreground_mse(truth: Tensor, recon: Tensor) -> Tensor:
    """MSE over the pixels that are foreground in the truth; NaN where there is none."""
    _check_pair(truth, recon)
    inside = _foreground(truth)  # in the truth's own precision: a float32 .1 is more than .1 in float64
    truth, recon = _pair(truth, recon)
    error = (truth - recon).square().mean(dim=1)
    return (error * inside).sum(dim=(1, 2)) / inside.sum(dim=(1, 2))


def foreground_psnr(truth: Tensor, recon: Tensor) -> Tensor:
    """PSNR over the foreground pixels, capped at 100 dB; NaN where there is none."""
    return _decibels(foreground_mse(truth, recon))


def foreground_ssim(truth: Tensor, recon: Tensor) -> Tensor:
    """SSIM of the foreground box alone; NaN where there is none.

    A window of the crop is a window of the image, so the crop's SSIM is a mean over part of the image's map.
    """
    similarity = _ssim_map(truth, recon).mean(dim=1)
    top, bottom, left, right = foreground_box(truth).unbind(1)
    rows = _between(top, bottom - WINDOW + 1, similarity.shape[1])
    columns = _between(left, right - WINDOW + 1, similarity.shape[2])
    inside = rows[:, :, None] & columns[:, None, :]
    return (similarity * inside).sum(dim=(1, 2)) / inside.sum(dim=(1, 2))


def foreground_box(truth: Tensor) -> Tensor:
    """The tight box around each image's foreground, (N, 4): top, bottom, left, right; the ends are exclusive.

    A side below 11 px grows on both ends alike, as far as the border allows, so that one SSIM window fits; an
    image without foreground gets an empty box, four zeros.
    """
    _check_images(truth)
    inside = _foreground(truth)
    top, bottom = _extent(inside.any(dim=2))
    left, right = _extent(inside.any(dim=1))
    return torch.stack([top, bottom, left, right], dim=1)


def minmax(images: Tensor) -> Tensor:
    """Each image stretched to [0, 1]; a constant one has no contrast to stretch and stays as it is."""
    _check_images(images)
    low, high = images.amin(dim=(1, 2, 3), keepdim=True), images.amax(dim=(1, 2, 3), keepdim=True)
    return torch.where(high - low < FLAT, images, (images - low) / (high - low).clamp_min(FLAT))


def ssim_either(truth: Tensor, recon: Tensor) -> Tensor:
    """SSIM of the picture or of its negative, whichever is more like the truth: what an image gave away.

    A negative SSIM is not privacy: whoever sees the negative sees the picture.
    """
    return torch.maximum(ssim(truth, recon), ssim(truth, 1 - recon))


FIGURES = (
    "ssim", "ssim_either", "ssim_p90", "psnr", "mse", "ncc", "lpips", "ssim_minmax", "ssim_inverted", "fg_mse",
    "fg_psnr", "fg_ssim", "fg_lpips", "recon_std",
)  # fmt: skip


@torch.no_grad()
def scores(
    truth: Tensor, recon: Tensor, lpips: Callable[[Tensor, Tensor], Tensor] | None = None
) -> dict[str, float | None]:
    """The mean of every figure over all images; reconstructions are clamped to [0, 1] first.

    Foreground figures leave out images without foreground (NaN when no image has one). The LPIPS figures are
    None without `lpips`. `ssim_minmax` stretches truth and reconstruction alike, so it is 1 for a copy in
    another contrast; `ssim_inverted` is that of the negative, so an attack that got everything but the sign shows.
    `ssim_either` is the better of picture and negative, image by image, and `ssim_p90` its 90th percentile.
    `recon_std` is how much a pixel varies from image to image: 0 says that every image was
    reconstructed as the same one, NaN that a single image cannot tell.
    """
    _check_values(truth, recon)
    parts = [
        _all_figures(a.clamp(0, 1), b.clamp(0, 1), lpips)
        for a, b in zip(truth.split(CHUNK), recon.split(CHUNK), strict=True)
    ]
    means: dict[str, float | None] = {}
    for name in parts[0]:
        values = torch.cat([part[name] for part in parts]).double()
        means[name] = (values.nanmean() if name.startswith("fg_") else values.mean()).item()
        if name == "ssim_either":
            means["ssim_p90"] = tail(values)
    return {name: means.get(name) for name in FIGURES[:-1]} | {"recon_std": spread_across(recon)}


def spread_across(recon: Tensor) -> float:
    """Mean over pixels of the standard deviation across images, in chunks."""
    if len(recon) < 2:
        return math.nan
    # Differences to the first image: equal images give exactly 0, not the rounding of E[x²] - E[x]².
    first = recon[0].clamp(0, 1).double()
    total, squares = torch.zeros_like(first), torch.zeros_like(first)
    for chunk in recon.split(CHUNK):
        difference = chunk.clamp(0, 1).double() - first
        total += difference.sum(dim=0)
        squares += difference.square().sum(dim=0)
    variance = squares / len(recon) - (total / len(recon)).square()
    return variance.clamp_min(0).sqrt().mean().item()


def _all_figures(truth: Tensor, recon: Tensor, lpips: Callable[[Tensor, Tensor], Tensor] | None) -> dict[str, Tensor]:
    picture, negative = ssim(truth, recon), ssim(truth, 1 - recon)
    figures = {
        "ssim": picture,
        "ssim_either": torch.maximum(picture, negative),
        "psnr": psnr(truth, recon),
        "mse": mse(truth, recon),
        "ncc": ncc(truth, recon),
        "ssim_minmax": ssim(minmax(truth), minmax(recon)),
        "ssim_inverted": negative,
        "fg_mse": foreground_mse(truth, recon),
        "fg_psnr": foreground_psnr(truth, recon),
        "fg_ssim": foreground_ssim(truth, recon),
    }
    if lpips is not None:
        figures["lpips"] = lpips(truth, recon)
        figures["fg_lpips"] = foreground_lpips(lpips, truth, recon, foreground_box(truth))
    return figures


def _ssim_map(truth: Tensor, recon: Tensor) -> Tensor:
    """Eq. 13 of Wang et al. at every valid window, with their k1 = .01, k2 = .03, sigma = 1.5."""
    a, b = _pair(truth, recon)
    if min(a.shape[2:]) < WINDOW:
        raise ValueError(f"SSIM needs images of at least {WINDOW}x{WINDOW} px (one window); got {tuple(a.shape)}")
    c1, c2 = 0.01**2, 0.03**2
    mean_a, mean_b = _blur(a), _blur(b)
    variance_a, variance_b = _blur(a * a) - mean_a**2, _blur(b * b) - mean_b**2
    covariance = _blur(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return luminance * (2 * covariance + c2) / (variance_a + variance_b + c2)


def _blur(images: Tensor) -> Tensor:
    """The Gaussian-weighted mean of every window, as two products with band matrices."""
    down, across = (_band(side, images.dtype, images.device) for side in images.shape[2:])
    return down @ images @ across.T


@lru_cache(maxsize=16)  # readers that train for SSIM ask for the same ones ten times a step
@torch.inference_mode(False)
def _band(side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One row per valid window along a side of `side` pixels, holding that window's weights."""
    offset = torch.arange(WINDOW, dtype=dtype, device=device) - WINDOW // 2
    weights = torch.softmax(-offset.square() / (2 * 1.5**2), dim=0)
    band = torch.zeros(side - WINDOW + 1, side, dtype=dtype, device=device)
    for place, weight in enumerate(weights):
        band.diagonal(place).fill_(weight)
    return band


def _extent(occupied: Tensor) -> tuple[Tensor, Tensor]:
    """First and past-the-last occupied place in each row of (N, side), grown to a window; 0, 0 for none."""
    side = occupied.shape[1]
    places = torch.arange(side, device=occupied.device)
    first = torch.where(occupied, places, side).amin(dim=1)
    length = torch.where(occupied, places + 1, 0).amax(dim=1) - first
    grown = length.clamp_min(min(WINDOW, side))
    start = torch.minimum((first - (grown - length) // 2).clamp_min(0), side - grown)
    some = occupied.any(dim=1)
    return start * some, (start + grown) * some


def _between(start: Tensor, end: Tensor, side: int) -> Tensor:
    places = torch.arange(side, device=start.device)
    return (places >= start[:, None]) & (places < end[:, None])


def _foreground(truth: Tensor) -> Tensor:
    """(N, H, W): a pixel counts when any of its channels is bright enough."""
    return (truth > FOREGROUND).any(dim=1)


def _decibels(error: Tensor) -> Tensor:
    return -10 * torch.log10(error.clamp_min(PERFECT))


def _pair(truth: Tensor, recon: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64: in float32, SSIM's E[x²] - E[x]² is wrong by 1e-4 where an image is flat."""
    _check_pair(truth, recon)
    return truth.double(), recon.double()


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            "images are float tensors (N, C, H, W) in [0, 1] (divide bytes by 255); "
            f"got {tuple(images.shape)} of {images.dtype}"
        )


def _check_pair(truth: Tensor, recon: Tensor) -> None:
    _check_images(truth)
    _check_images(recon)
    if truth.shape != recon.shape:
        raise ValueError(
            f"a reconstruction has the shape of its truth, {tuple(truth.shape)}; got {tuple(recon.shape)}"
        )


def _check_values(truth: Tensor, recon: Tensor) -> None:
    _check_pair(truth, recon)
    if truth.numel() == 0:
        raise ValueError(f"there is nothing to score: the images have the shape {tuple(truth.shape)}")
    low, high = (end.item() for end in truth.aminmax())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # also true of NaN
        raise ValueError(f"the truth has pixels in [0, 1] (undo its normalisation first); got [{low:g}, {high:g}]")
    if not recon.isfinite().all():
        bad = int((~recon.isfinite()).flatten(1).any(dim=1).sum())
        raise ValueError(
            f"{bad} of {len(recon)} reconstructions hold NaN or infinity: a diverged attack has no score"
        )
