"""Which codec takes the fewest bytes for a tensor: counted, not tried out."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .bits import MOST_ELEMENTS, nonzeros, rows_of, words
from .half import BFLOAT16, PLAIN, Half, form_of
from .prefix import Prefix, kept_lengths
from .raw import Raw
from .sparse import Sparse

RAW, SPARSE, PREFIX, HALF = Raw(), Sparse(), Prefix(), Half()
FEWEST = 64  # elements: below it there is little to leave out
_SHARE = 8  # this part of the rows is looked at before all are


def smallest(tensor: Tensor, below: float = math.inf) -> tuple[Codec, int]:
    """The codec that takes the fewest bytes, and how many. Never more than the tensor's own bytes.

    Most tensors are dense: they cost one pass that counts zeros. What has no gradient (labels, indices) goes raw.
    Who has bytes for it already says how many: half of the tensor's own is not looked for where that is no fewer.
    """
    if not tensor.is_floating_point() or not FEWEST <= tensor.numel() <= MOST_ELEMENTS:
        return RAW, RAW.size(tensor)
    best = _without_zeros(tensor)
    halved = HALF.size_of(tensor.numel(), tensor.element_size(), BFLOAT16)
    return (HALF, halved) if halved < min(best[1], below) and form_of(tensor) != PLAIN else best


def _without_zeros(tensor: Tensor) -> tuple[Codec, int]:
    """The best of leaving out nothing, any zeros, or those at the ends of rows."""
    raw = RAW.size(tensor)
    each, (rows, length) = tensor.element_size(), rows_of(tuple(tensor.shape))
    found = words(tensor).reshape(rows, length)
    kept = None
    if found.device.type == "cpu":
        nonzero = nonzeros(found)
    else:  # waiting for the device costs more than counting: ask once for both
        nonzero, kept = torch.stack((torch.count_nonzero(found), kept_lengths(found).sum())).tolist()
    sparse = SPARSE.size_of(tensor.numel(), nonzero, each)
    best: tuple[Codec, int] = (SPARSE, sparse) if sparse < raw else (RAW, raw)
    # Prefixes keep every non-zero value and the zeros before the last one. This many of these can be afforded:
    room = (best[1] - 1 - PREFIX.size_of(rows, length, nonzero, each)) // each
    if kept is None and (room < 0 or _inner_zeros(found[: rows // _SHARE].numpy()) > room):
        return best
    kept = int(kept_lengths(found).sum()) if kept is None else kept
    prefix = PREFIX.size_of(rows, length, kept, each)
    return (PREFIX, prefix) if prefix < best[1] else best


def _inner_zeros(rows: NDArray[Any]) -> int:
    """Zeros before the last non-zero value of a row, over all rows. In few steps: most tensors end here."""
    is_kept = rows != 0
    last = is_kept[:, ::-1].argmax(1)  # counted from the end, and 0 for an empty row as well
    empty = np.count_nonzero(last == 0) - np.count_nonzero(is_kept[:, -1])
    return int(rows.shape[1] * (len(rows) - empty) - last.sum() - np.count_nonzero(is_kept))
