"""Which codec takes the fewest bytes for a tensor: counted, not tried out."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .codecs.base import Codec
from .codecs.half import BFLOAT16, PLAIN, Half, form_of, may_fit
from .codecs.parts.bits import MOST_ELEMENTS, on_host, rows_of, words
from .codecs.prefix import Prefix, kept_lengths
from .codecs.raw import Raw
from .codecs.sparse import Sparse

RAW, SPARSE, PREFIX, HALF = Raw(), Sparse(), Prefix(), Half()
FEWEST = 64  # elements: below it there is little to leave out


def smallest(tensor: Tensor, below: float = math.inf) -> tuple[Codec, int]:
    """The codec that takes the fewest bytes, and how many. Never more than the tensor's own bytes.

    Most tensors are dense: they cost one pass that counts zeros. What has no gradient (labels, indices) goes raw.
    Who has bytes for it already says how many: half of the tensor's own is not looked for where that is no fewer.
    """
    if not tensor.is_floating_point() or not FEWEST <= tensor.numel() <= MOST_ELEMENTS:
        return RAW, RAW.size(tensor)
    each, (rows, length) = tensor.element_size(), rows_of(tuple(tensor.shape))
    halved = HALF.size_of(tensor.numel(), each, BFLOAT16)
    if tensor.is_cpu:
        found = on_host(tensor)
        best = _without_zeros(found, rows, length)
        wanted = halved < min(best[1], below) and may_fit(found)
    else:
        best = _without_zeros_there(words(tensor).reshape(rows, length))
        wanted = halved < min(best[1], below)
    return (HALF, halved) if wanted and form_of(tensor) != PLAIN else best


def _without_zeros(found: NDArray[Any], rows: int, length: int) -> tuple[Codec, int]:
    """The best of leaving out nothing, any zeros, or those at the ends of rows."""
    each, nonzero = found.itemsize, int(np.count_nonzero(found))
    best = _any_zeros(len(found), nonzero, each)
    # Prefixes keep every non-zero value and the zeros before the last one. This many of these can be afforded:
    room = (best[1] - 1 - PREFIX.size_of(rows, length, nonzero, each)) // each
    if room < 0 or _has_more_inner_zeros(found, rows, length, room):
        return best
    kept = int(kept_lengths(torch.from_numpy(found).reshape(rows, length)).sum())
    return _or_prefix(best, rows, length, kept, each)


def _without_zeros_there(found: Tensor) -> tuple[Codec, int]:
    """The same on a device, of words in rows. Waiting for it costs more than counting: it is asked once for all."""
    each, (rows, length) = found.element_size(), found.shape
    nonzero, kept = torch.stack((torch.count_nonzero(found), kept_lengths(found).sum())).tolist()
    return _or_prefix(_any_zeros(found.numel(), nonzero, each), rows, length, kept, each)


def _any_zeros(elements: int, nonzero: int, each: int) -> tuple[Codec, int]:
    sparse, raw = SPARSE.size_of(elements, nonzero, each), elements * each
    return (SPARSE, sparse) if sparse < raw else (RAW, raw)


def _or_prefix(best: tuple[Codec, int], rows: int, length: int, kept: int, each: int) -> tuple[Codec, int]:
    prefix = PREFIX.size_of(rows, length, kept, each)
    return (PREFIX, prefix) if prefix < best[1] else best


def _has_more_inner_zeros(found: NDArray[Any], rows: int, length: int, room: int) -> bool:
    """Whether it is sure that there are more than `room`. Half of the rows mostly tell."""
    half = rows // 2 * length
    sure = _inner_zeros(found[:half], length)
    return sure > room or sure + _inner_zeros(found[half:], length) > room


def _inner_zeros(found: NDArray[Any], length: int) -> int:
    """As many zeros as stand before the last non-zero value of their row at least: those right before a value.

    In few steps along the memory, which rows would interrupt: most tensors end here.
    """
    is_kept = found != 0
    rises, between = is_kept[1:] > is_kept[:-1], is_kept[length::length] > is_kept[length - 1 : -1 : length]
    return int(np.count_nonzero(rises)) - int(np.count_nonzero(between))  # from one row to the next is none
