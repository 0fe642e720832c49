"""Who shares a row: ways to part a batch into groups of k to 2k - 1 samples. Pure functions of numbers."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Distances = NDArray[np.float64]  # squared, n x n
Groups = list[NDArray[np.int64]]  # indices of samples, every sample in exactly one group


def squared_distances(rows: Tensor) -> Distances:
    """‖a − b‖² for every pair of rows, in float64.

    By ‖a‖² + ‖b‖² − 2ab, one matrix product instead of n² differences of d numbers. Centred first, because that form
    cancels badly far from the origin, and activations behind a ReLU are far from it.
    """
    x = rows.double()
    x = x - x.mean(0)
    products = x @ x.T
    norms = products.diagonal()
    return (norms + norms[:, None] - 2 * products).clamp_min(0).cpu().numpy()


def mdav(distances: Distances, k: int) -> Groups:
    """Maximum distance to average vector: the outermost sample with its k − 1 nearest, then the opposite one, ...

    The textbook computes a centroid in each round. The squared distance to the centroid of a set ranks like the
    sum of squared distances to its members, so the n x n matrix is all that is needed: no round touches d numbers.
    """
    # A row that is no number any more must not break the sizes; who trains sees it in the loss.
    D = np.nan_to_num(distances, nan=0.0, posinf=0.0)
    sums, taken = D.sum(1), np.zeros(len(D))  # over the samples left; infinite for those taken
    groups: Groups = []

    def take(centre: int) -> None:
        nearest = np.argpartition(D[centre] + taken, k - 1)[:k]
        sums[:] -= D[nearest].sum(0)
        sums[nearest], taken[nearest] = -np.inf, np.inf
        groups.append(nearest)

    left = len(D)
    while left >= 3 * k:
        outermost = int(sums.argmax())
        take(outermost)
        # Looked for among those left, so that among duplicates it cannot be in the group just made.
        take(int((D[outermost] - taken).argmax()))
        left -= 2 * k
    if left >= 2 * k:
        take(int(sums.argmax()))
    groups.append(np.flatnonzero(taken == 0))
    return groups


def mdav_within_classes(distances: Distances, labels: NDArray[np.int64], k: int) -> Groups:
    """MDAV within each label of k samples or more.

    Rarer labels are pooled and grouped together. A pool of fewer than k takes in the smallest label that has enough.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    pools = [np.flatnonzero(labels == label) for label in classes[sizes >= k][np.argsort(sizes[sizes >= k])]]
    rare = np.flatnonzero(np.isin(labels, classes[sizes < k]))
    if 0 < len(rare) < k:
        pools[0] = np.concatenate([pools[0], rare])
    elif len(rare):
        pools.append(rare)
    return [pool[group] for pool in pools for group in mdav(distances[np.ix_(pool, pool)], k)]


def consecutive(order: Tensor, k: int) -> Groups:
    """`order` cut into ⌊n/k⌋ stretches as equal as they go: sizes follow from n and k alone."""
    return np.array_split(order.cpu().numpy(), len(order) // k)
