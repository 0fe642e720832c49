"""Training images moved and mirrored by chance, anew at every step."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.seeds import generator

AUGMENTATIONS = ("", "crop", "flip", "crop+flip")
PADDING = 4  # pixels that a crop may move an image, each way


def augmented(images: Tensor, how: str, seed: int) -> Tensor:
    """`images` cropped at a random place of themselves with a black rim ("crop"), and mirrored or not ("flip").

    What is drawn follows from the seed alone, on every device; the pixels are moved where they are.
    """
    if not how:
        return images
    count, channels, height, width = images.shape
    draw = generator(seed)
    down, right = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=draw)
    mirrored = torch.rand(count, 1, generator=draw) < 0.5
    if "crop" not in how:
        down, right = torch.full_like(down, PADDING), torch.full_like(right, PADDING)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    if "flip" in how:
        columns = torch.where(mirrored, columns.flip(1), columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    sample, channel = (torch.arange(size, device=images.device) for size in (count, channels))
    at = (sample[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :])
    return pad(images, [PADDING] * 4)[at]
