"""Images moved and mirrored by chance: those a client trains on, anew at every step, and those an attacker makes."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.seeds import generator

AUGMENTATIONS = ("", "crop", "flip", "crop+flip")
PADDING = 4  # pixels that a crop may move an image, each way
NUDGE = 2  # the same of `nudged`


def augmented(images: Tensor, how: str, seed: int) -> Tensor:
    """`images` cropped at a random place of themselves with a black rim ("crop"), and mirrored or not ("flip").

    What is drawn follows from the seed alone, on every device; the pixels are moved where they are.
    """
    if not how:
        return images
    count = len(images)
    draw = generator(seed)
    down, right = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=draw)
    mirrored = torch.rand(count, 1, generator=draw) < 0.5
    if "crop" not in how:
        down, right = torch.full_like(down, PADDING), torch.full_like(right, PADDING)
    return _cut_out(pad(images, [PADDING] * 4), down, right, mirrored & ("flip" in how), PADDING)


def nudged(images: Tensor, *, mirror: bool) -> Tensor:
    """Each image moved by up to `NUDGE` pixels down and across, its border repeated; every other one mirrored, on
    average, where `mirror`. Drawn from torch's own generator: for whoever makes more images of those he has."""
    down, right = torch.randint(2 * NUDGE + 1, (2, len(images), 1))
    mirrored = torch.rand(len(images), 1) < 0.5 if mirror else torch.zeros(len(images), 1, dtype=torch.bool)
    return _cut_out(pad(images, [NUDGE] * 4, mode="replicate"), down, right, mirrored, NUDGE)


def _cut_out(wide: Tensor, down: Tensor, right: Tensor, mirrored: Tensor, rim: int) -> Tensor:
    """Of each image with a rim, the part that begins so far down and to the right."""
    count, channels, height, width = wide.shape
    rows, columns = down + torch.arange(height - 2 * rim), right + torch.arange(width - 2 * rim)
    columns = torch.where(mirrored, columns.flip(1), columns)
    rows, columns = rows.to(wide.device), columns.to(wide.device)
    sample, channel = (torch.arange(size, device=wide.device) for size in (count, channels))
    return wide[
        sample[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]
