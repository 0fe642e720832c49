"""More pictures of the kind that an attacker has: moved by a few pixels, and mirrored where they stay of the kind."""

import torch
from torch import Tensor
from torch.nn.functional import pad

SHIFT = 2  # pixels, at most, in each direction


def augmented(images: Tensor, *, mirrored: bool) -> Tensor:
    """Each image moved by up to `SHIFT` pixels down and across, its border repeated; every other one mirrored, on
    average, where `mirrored`. In [0, 1] as they were."""
    count, _, height, width = images.shape
    wide = pad(images, (SHIFT,) * 4, mode="replicate")
    down, across = torch.randint(2 * SHIFT + 1, (2, count)).to(images.device)
    rows = down[:, None] + torch.arange(height, device=images.device)
    columns = across[:, None] + torch.arange(width, device=images.device)
    if mirrored:
        turned = (torch.rand(count) < 0.5).to(images.device)
        columns = torch.where(turned[:, None], columns.flip(1), columns)
    each = torch.arange(count, device=images.device)
    # (N, H, W, C): index tensors on both sides of a slice come first.
    return wide[each[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()
