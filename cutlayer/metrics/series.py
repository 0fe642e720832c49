"""How alike two series are: figures on (N, channels, length), one value per series, in float64.

The shape of a curve is what gives it away, so scale and offset of a channel count for nothing: correlation, mean over
the channels that vary, and of the curve or its mirror image, whichever is more like the truth.
"""

import torch
from torch import Tensor

from .bootstrap import tail

STILL = 1e-6  # a channel that deviates less is a flat line

FIGURES = ("correlation", "correlation_either", "correlation_p90", "spectral_error")


def correlation(truth: Tensor, guess: Tensor) -> Tensor:
    """Pearson's, channel by channel, mean over the channels whose truth is no flat line; 0 where none is."""
    a, b = _centred(truth, guess)
    spread_a, spread_b = a.square().mean(2).sqrt(), b.square().mean(2).sqrt()
    varies = spread_a >= STILL
    flat = ~varies | (spread_b < STILL)
    each = torch.where(flat, 0.0, (a * b).mean(2) / (spread_a * spread_b).clamp_min(STILL**2)).clamp(-1, 1)
    return each.sum(1) / varies.sum(1).clamp_min(1)


def correlation_either(truth: Tensor, guess: Tensor) -> Tensor:
    """Of the curve or its mirror image: what a series gave away."""
    return correlation(truth, guess).abs()


def spectral_error(truth: Tensor, guess: Tensor) -> Tensor:
    """Distance of the amplitude spectra by the size of the truth's, channels together, levels left out: 0 the same
    rhythm, 1 what a flat line has."""
    a, b = (torch.fft.rfft(one, dim=2).abs().flatten(1) for one in _centred(truth, guess))
    return (a - b).norm(dim=1) / a.norm(dim=1).clamp_min(STILL)


@torch.no_grad()
def scores(truth: Tensor, guess: Tensor) -> dict[str, float]:
    """The mean of every figure over all series, and the 90th percentile of `correlation_either`."""
    either = correlation_either(truth, guess)
    return {
        "correlation": float(correlation(truth, guess).mean()),
        "correlation_either": float(either.mean()),
        "correlation_p90": tail(either),
        "spectral_error": float(spectral_error(truth, guess).mean()),
    }


def _centred(truth: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    if truth.dim() != 3 or truth.shape != guess.shape:
        raise ValueError(
            f"series are (N, channels, length), and a reconstruction has the shape of its truth; "
            f"got {tuple(truth.shape)} and {tuple(guess.shape)}"
        )
    a, b = truth.double(), guess.double()
    return a - a.mean(2, keepdim=True), b - b.mean(2, keepdim=True)
