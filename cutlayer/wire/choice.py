"""Which codec takes the fewest bytes for a tensor: counted, not tried out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .codecs.base import Codec
from .codecs.half import BFLOAT16, PLAIN, Half, form_of, may_fit
from .codecs.parts.bits import MOST_ELEMENTS, on_host, rows_of
from .codecs.prefix import Prefix, zeros_at_ends, zeros_before_values
from .codecs.raw import Raw
from .codecs.sparse import Sparse
from .counting import counted_there
from .later import Later

RAW, SPARSE, PREFIX, HALF = Raw(), Sparse(), Prefix(), Half()
FEWEST = 64  # elements: below it there is little to leave out


def smallest(tensor: Tensor, below: float = math.inf) -> tuple[Codec, int]:
    """The codec that takes the fewest bytes, and how many. Never more than the tensor's own bytes.

    Most tensors are dense: they cost one pass that counts zeros. What has no gradient (labels, indices) goes raw.
    Who has bytes for it already says how many (`below`): where no codec can take fewer, none is looked for.
    """
    if _goes_raw(tensor):
        return RAW, RAW.size(tensor)
    if not tensor.is_cpu:
        shape, each = tuple(tensor.shape), tensor.element_size()
        return _chosen(
            shape, each, torch.cat([fact.reshape(-1).long() for fact in counted_there(tensor)]).tolist(), below
        )
    found = on_host(tensor)
    best = _without_zeros(found, tensor.shape, below)
    if found.itemsize <= 2 or not may_fit(found):
        return best
    halved = HALF.size_of(len(found), found.itemsize, BFLOAT16)
    return (HALF, halved) if halved < min(best[1], below) and form_of(tensor) != PLAIN else best


def fewest_bytes(elements: int, each: int, nonzero: int) -> int:
    """No codec takes fewer: none leaves out what is not zero, and one alone writes it shorter, all in two bytes."""
    least = nonzero * each
    return least if each <= 2 else min(least, HALF.size_of(elements, each, BFLOAT16))


def smallest_later(tensor: Tensor) -> int | Later:
    """The bytes of `smallest`, without waiting for the tensor's device."""
    if _goes_raw(tensor):
        return RAW.size(tensor)
    shape, each = tuple(tensor.shape), tensor.element_size()
    return Later(counted_there(tensor), lambda facts: _chosen(shape, each, facts, math.inf)[1])


def _goes_raw(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or not FEWEST <= tensor.numel() <= MOST_ELEMENTS


def _chosen(shape: tuple[int, ...], each: int, facts: Sequence[int], below: float) -> tuple[Codec, int]:
    (nonzero, kept, *misfits), (rows, length) = facts, rows_of(shape)
    best = _or_prefix(_any_zeros(rows * length, nonzero, each), rows, length, kept, each)
    halved = HALF.size_of(rows * length, each, BFLOAT16)
    return (HALF, halved) if not all(misfits) and halved < min(best[1], below) else best


def _without_zeros(found: NDArray[Any], shape: tuple[int, ...], below: float) -> tuple[Codec, int]:
    """The best of leaving out nothing, any zeros, or those at the ends of rows."""
    is_kept = found != 0  # numpy compares and counts truth values faster than it counts words
    each, elements, nonzero = found.itemsize, len(found), int(np.count_nonzero(is_kept))
    if nonzero == elements or nonzero * each >= below:  # nothing to leave out, whichever way; or not enough
        return RAW, elements * each
    best, (rows, length) = _any_zeros(elements, nonzero, each), rows_of(shape)
    # Prefixes leave out the zeros at the ends of rows: this many of them are needed to win.
    needed = elements - (best[1] - 1 - PREFIX.size_of(rows, length, 0, each)) // each
    if zeros_before_values(is_kept, length) > elements - nonzero - needed:
        return best
    ends = zeros_at_ends(is_kept.reshape(rows, length), needed)
    return best if ends < needed else (PREFIX, PREFIX.size_of(rows, length, elements - ends, each))


def _any_zeros(elements: int, nonzero: int, each: int) -> tuple[Codec, int]:
    sparse, raw = SPARSE.size_of(elements, nonzero, each), elements * each
    return (SPARSE, sparse) if sparse < raw else (RAW, raw)


def _or_prefix(best: tuple[Codec, int], rows: int, length: int, kept: int, each: int) -> tuple[Codec, int]:
    prefix = PREFIX.size_of(rows, length, kept, each)
    return (PREFIX, prefix) if prefix < best[1] else best
