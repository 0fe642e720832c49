"""Multi-kernel maximum mean discrepancy: how far apart two samples of a distribution are, differentiably."""

import torch
from torch import Tensor

WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the kernels, in units of the mean squared distance


def mk_mmd(a: Tensor, b: Tensor) -> Tensor:
    """The discrepancy between the rows of `a` and of `b`, as many of each, with five Gaussian kernels.

    As FORA's released code has it, where the paper (Eq. 4) weights the kernels: they are summed. Their widths
    follow the mean of all squared distances of this very batch, and no gradient goes through them. Within terms are
    unbiased (i != j), and 2 / (n - 1) is added, which changes no gradient.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"mk_mmd compares as many rows as rows, two at least; got {len(a)} and {len(b)}")
    count = len(a)
    rows = torch.cat([a.flatten(1), b.flatten(1)])
    distances = _squared_distances(rows)
    mean = distances.detach().mean().clamp_min(1e-12)
    kernel = sum((torch.exp(-distances / (2 * width * mean)) for width in WIDTHS), torch.zeros_like(distances))
    within_a, within_b, across = kernel[:count, :count], kernel[count:, count:], kernel[:count, count:]
    pairs = count * (count - 1)
    within = (_off_diagonal(within_a) + _off_diagonal(within_b)) / pairs
    return within - 2 * across.mean() + 2 / (count - 1)


def _squared_distances(rows: Tensor) -> Tensor:
    """Between all rows, by one product instead of all differences; rounding must not make one negative."""
    rows = rows - rows.detach().mean(0)  # far from zero the product would lose its digits
    squares = rows.square().sum(1)
    return (squares[:, None] + squares[None] - 2 * rows @ rows.T).clamp_min(0)


def _off_diagonal(kernel: Tensor) -> Tensor:
    return kernel.sum() - kernel.diagonal().sum()
