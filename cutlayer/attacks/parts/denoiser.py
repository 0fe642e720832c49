"""A diffusion prior: what images of this kind look like, as a network that takes noise out of them.

Denoiser and its training are Karras et al. 2022 ("Elucidating the Design Space of Diffusion-Based Generative
Models"), eq. 7 and table 1, with a network small enough for a CPU. Images are in [-1, 1] here.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, pixel_shuffle, pixel_unshuffle, silu

from ...core.guard import Shape
from ...core.stepping import adam

SPREAD = 0.5  # standard deviation of pixels that inputs and outputs are scaled for
LEAST, MOST = 0.02, 5.0  # noise it learns to take out, as standard deviations; spread evenly over their logarithm
FOLD = 2  # pixels a side that become channels: convolutions at full size cost most and see least
GROUPS = 8


class Denoiser(nn.Module):
    """Noisy images and how noisy each is (N,) to the mean of the images they may have come from."""

    def __init__(self, image: Shape, width: int):
        super().__init__()
        folded, told = image[0] * FOLD**2, 4 * width
        self.told = nn.Sequential(nn.Linear(2, told), nn.SiLU(), nn.Linear(told, told), nn.SiLU())
        self.first = nn.Conv2d(folded, width, 3, padding=1)
        self.fine = _Block(width, width, told)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.coarse = nn.ModuleList(_Block(2 * width, 2 * width, told) for _ in range(2))
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.joined = _Block(2 * width, width, told)
        self.last = nn.Sequential(nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, folded, 3, padding=1))
        nn.init.zeros_(self.last[-1].weight)  # type: ignore[arg-type]

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        level = level.reshape(-1, 1, 1, 1)
        total = (level.square() + SPREAD**2).sqrt()
        keep = SPREAD**2 / total.square()
        return keep * noisy + level * SPREAD / total * self._network(noisy / total, level.flatten().log() / 4)

    def _network(self, x: Tensor, how_noisy: Tensor) -> Tensor:
        high, wide = x.shape[2:]
        x = pad(x, (0, -wide % (2 * FOLD), 0, -high % (2 * FOLD)), mode="replicate")
        told = self.told(torch.stack([how_noisy, how_noisy.square()], 1))
        fine = self.fine(self.first(pixel_unshuffle(x, FOLD)), told)
        x = self.down(fine)
        for block in self.coarse:
            x = block(x, told)
        x = torch.cat([self.up(interpolate(x, scale_factor=2.0)), fine], 1)
        return pixel_shuffle(self.last(self.joined(x, told)), FOLD)[:, :, :high, :wide]


class _Block(nn.Module):
    """Two convolutions with a way around them; how noisy the image is scales and shifts what is between."""

    def __init__(self, channels: int, out: int, told: int):
        super().__init__()
        self.before, self.between = nn.GroupNorm(GROUPS, channels), nn.GroupNorm(GROUPS, out)
        self.one, self.other = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.told = nn.Linear(told, 2 * out)
        self.around = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        scale, shift = self.told(told)[:, :, None, None].chunk(2, 1)
        inner = self.one(silu(self.before(x)))
        inner = self.other(silu(self.between(inner) * (1 + scale) + shift))
        return self.around(x) + inner


def learn_to_denoise(images: Tensor, width: int, steps: int, batch: int) -> Denoiser:
    """A denoiser of images like these, in [0, 1], frozen: the moving average of its weights over the training."""
    rate = min(1e-2, 10 / steps)  # a short training has to go in large steps
    denoiser = Denoiser(tuple(images.shape[1:]), width).to(images)
    mean = torch.optim.swa_utils.AveragedModel(
        denoiser, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(1 - min(0.1, 10 / steps))
    )
    optimizer = adam(denoiser.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        clean = 2 * images[torch.randint(len(images), (batch,)).to(images.device)] - 1
        level = _levels(torch.rand(batch)).to(clean)
        noisy = clean + level.reshape(-1, 1, 1, 1) * torch.randn(clean.shape).to(clean)
        # As if the network inside were asked for the same at every level.
        weight = (level.square() + SPREAD**2) / (level * SPREAD).square()
        loss = (weight * (denoiser(noisy, level) - clean).square().flatten(1).mean(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        mean.update_parameters(denoiser)
    averaged = mean.module
    assert isinstance(averaged, Denoiser)
    return averaged.requires_grad_(False).eval()


def _levels(share: Tensor) -> Tensor:
    """From 0, the most noise, to 1, the least, evenly in the logarithm."""
    return MOST * (LEAST / MOST) ** share
