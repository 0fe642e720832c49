"""Distance correlation (Székely et al. 2007): zero only where two things are independent."""

import torch
from torch import Tensor

LEAST = 4  # below that the unbiased figure does not exist, and two rows always correlate perfectly


def distance_correlation(x: Tensor, z: Tensor, unbiased: bool = False, squared: bool = False) -> Tensor:
    """dCor of paired rows, 0 to 1 (Székely et al., 2007): the V-statistic, as losses use it.

    For few rows of many numbers it is far from 0 even if x and z are independent. `unbiased` gives Székely and
    Rizzo's (2013) corrected estimate of dCor² instead: 0 on average under independence, so at times below 0.
    """
    if len(x) != len(z):
        raise ValueError(f"distance correlation pairs rows: give as many of x as of z; got {len(x)} and {len(z)}")
    a, b = _distances(x, z.dtype, squared), _distances(z, z.dtype, squared)
    if unbiased:
        return _ratio(*(_u_centred(distances) for distances in (a, b)))
    # The root has no slope at 0, so it stops just before.
    return _ratio(*(_v_centred(distances) for distances in (a, b))).clamp_min(1e-12).sqrt()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """⟨A, B⟩ / (‖A‖ ‖B‖). The counts in dCov and dVar cancel; where nothing varies it is 0."""
    size = (a.square().sum() * b.square().sum()).clamp_min(torch.finfo(a.dtype).tiny).sqrt()
    return (a * b).sum() / size


def _v_centred(distances: Tensor) -> Tensor:
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def _u_centred(distances: Tensor) -> Tensor:
    count = len(distances)
    if count < LEAST:
        raise ValueError(f"the unbiased estimate needs at least {LEAST} rows; got {count}")
    rows = distances.sum(1) / (count - 2)
    centred = distances - rows - rows[:, None] + distances.sum() / ((count - 1) * (count - 2))
    return centred.masked_fill(torch.eye(count, dtype=torch.bool, device=distances.device), 0)


def _distances(rows: Tensor, dtype: torch.dtype, squared: bool) -> Tensor:
    if not rows.is_floating_point() and rows.dtype != torch.uint8:
        return _between_ids(rows, dtype, squared)
    rows = rows.to(dtype).flatten(1)
    rows = rows - rows.mean(0)  # distances stay, and less is lost in the differences below
    lengths = rows.square().sum(1)
    square = (lengths[:, None] + lengths - 2 * rows @ rows.T).clamp_min(0)
    # The root has no slope at 0: rows that coincide must not push each other by infinity.
    between = square if squared else (square + 1e-12).sqrt()
    return between.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), 0)


def _between_ids(rows: Tensor, dtype: torch.dtype, squared: bool) -> Tensor:
    """Word numbers are names, not sizes: the distance of their one-hot codes, √(2 · places that differ)."""
    rows = rows.flatten(1)
    square = 2 * torch.stack([(rows != row).sum(1) for row in rows]).to(dtype)
    return square if squared else square.sqrt()
