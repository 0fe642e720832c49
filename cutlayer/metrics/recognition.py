"""Whether a picture still tells which image it was made of, where SSIM sees a bad picture only.

A reader that averages gives blurred, pale or negative pictures: poor by SSIM, and yet a person who knows the images
says at once which one each of them is. So does this figure: it compares a picture with every private image.
"""

import torch
from torch import Tensor

from .images import FLAT

SAME = 1e-9  # likenesses that differ by less are the same


def identified(gallery: Tensor, recon: Tensor) -> Tensor:
    """For each of `recon`, made of the first images of `gallery`: 1 where its own is the most alike of all, else 0.

    Where several are equally alike the hit is shared among them, so a constant picture scores 1 / len(gallery), which
    is chance.
    """
    if len(recon) > len(gallery):
        raise ValueError(f"{len(recon)} pictures were made of at most as many images; there are {len(gallery)}")
    alike = likeness(recon, gallery)
    best = alike >= alike.amax(1, keepdim=True) - SAME
    return best.diagonal().double() / best.sum(1)


@torch.no_grad()
def likeness(pictures: Tensor, gallery: Tensor) -> Tensor:
    """(pictures, gallery): the correlation (`ncc`) of each two, or that of the negative, whichever is higher."""
    return (_unit(pictures) @ _unit(gallery).T).abs()


def _unit(images: Tensor) -> Tensor:
    """Rows of mean 0 and length 1; an image without contrast becomes 0, like nothing."""
    rows = images.clamp(0, 1).double().flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    spread = rows.square().mean(1, keepdim=True).sqrt()
    return torch.where(spread < FLAT, 0.0, rows / (spread.clamp_min(FLAT) * rows.shape[1] ** 0.5))
