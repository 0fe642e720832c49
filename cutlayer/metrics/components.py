"""Principal components of what was sent: a wide message as the few numbers in which it varies."""

import torch
from torch import Tensor, nn


class Components(nn.Module):
    """Rows along the directions in which the known ones vary most: there is nothing to learn about others."""

    def __init__(self, seen: Tensor, most: int):
        super().__init__()
        rows = seen.detach().flatten(1)
        self.mean, self.std = rows.mean(0), rows.std(0).clamp_min(1e-6)
        rows = ((rows - self.mean) / self.std).double()
        values, vectors = torch.linalg.eigh(rows @ rows.T)  # n x n: there are fewer rows than numbers in one
        kept = values.flip(0)[:most] > 1e-9 * values[-1]
        kept[0] = True  # of rows that are all alike as well
        along, sizes = vectors.flip(1)[:, :most][:, kept], values.flip(0)[:most][kept]
        self.directions = (rows.T @ along / sizes.clamp_min(1e-12).sqrt()).to(seen.dtype)

    @torch.no_grad()
    def forward(self, seen: Tensor) -> Tensor:
        return (seen.flatten(1) - self.mean) / self.std @ self.directions
