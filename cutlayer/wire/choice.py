"""Which codec takes the fewest bytes for a tensor: counted, not tried out."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

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


class _Form(NamedTuple):
    """What follows from a tensor's shape and type alone: every message asks, and a run has few of them."""

    rows: int
    length: int  # of a row
    each: int  # bytes of a value
    raw: int  # bytes of all of them
    goes_raw: bool  # whatever is in it
    dense: int  # from so many values that are not zero on, no way to leave zeros out takes fewer bytes


@lru_cache(maxsize=256)
def _form_of(shape: torch.Size, dtype: torch.dtype) -> _Form:
    (rows, length), each, elements = rows_of(shape), dtype.itemsize, prod(shape)
    raw, goes_raw = elements * each, not dtype.is_floating_point or not FEWEST <= elements <= MOST_ELEMENTS

    def takes_all(nonzero: int) -> bool:
        at_best = min(SPARSE.size_of(elements, nonzero, each), PREFIX.size_of(rows, length, nonzero, each))
        return at_best >= raw

    dense = 0 if goes_raw else bisect_left(range(elements), True, key=takes_all)
    return _Form(rows, length, each, raw, goes_raw, dense)


def smallest(tensor: Tensor, below: float = math.inf) -> tuple[Codec, int]:
    """The codec that takes the fewest bytes, and how many. Never more than the tensor's own bytes.

    Most tensors are dense: they cost one pass that counts zeros. What has no gradient (labels, indices) goes raw.
    Who has bytes for it already says how many (`below`): where no codec can take fewer, none is looked for.
    """
    form = _form_of(tensor.shape, tensor.dtype)
    if form.goes_raw:
        return RAW, form.raw
    if not tensor.is_cpu:
        facts = torch.cat([fact.reshape(-1).long() for fact in counted_there(tensor)]).tolist()
        return _chosen(form, facts, below)
    found = on_host(tensor)
    is_kept = found != 0  # numpy compares and counts truth values faster than it counts words
    nonzero = int(np.count_nonzero(is_kept))
    leaves_all = nonzero >= form.dense or nonzero * form.each >= below
    best = (RAW, form.raw) if leaves_all else _without_zeros(form, is_kept, nonzero)
    if form.each <= 2 or not may_fit(found):
        return best
    halved = HALF.size_of(len(found), form.each, BFLOAT16)
    return (HALF, halved) if halved < min(best[1], below) and form_of(tensor) != PLAIN else best


def fewest_bytes(elements: int, each: int, nonzero: int) -> int:
    """No codec takes fewer: none leaves out what is not zero, and one alone writes it shorter, all in two bytes."""
    least = nonzero * each
    return least if each <= 2 else min(least, HALF.size_of(elements, each, BFLOAT16))


def smallest_later(tensor: Tensor) -> int | Later:
    """The bytes of `smallest`, without waiting for the tensor's device."""
    form = _form_of(tensor.shape, tensor.dtype)
    if form.goes_raw:
        return form.raw
    return Later(counted_there(tensor), lambda facts: _chosen(form, facts, math.inf)[1])


def _chosen(form: _Form, facts: Sequence[int], below: float) -> tuple[Codec, int]:
    nonzero, kept, *misfits = facts
    elements = form.rows * form.length
    best = _or_prefix(_any_zeros(elements, nonzero, form.each), form.rows, form.length, kept, form.each)
    halved = HALF.size_of(elements, form.each, BFLOAT16)
    return (HALF, halved) if not all(misfits) and halved < min(best[1], below) else best


def _without_zeros(form: _Form, is_kept: NDArray[np.bool_], nonzero: int) -> tuple[Codec, int]:
    """The best of leaving out nothing, any zeros, or those at the ends of rows."""
    elements, each, rows, length = len(is_kept), form.each, form.rows, form.length
    best = _any_zeros(elements, nonzero, each)
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
