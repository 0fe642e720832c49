"""Where the values that leave stand among all: a bit for every element, or their indices, whichever is smaller."""

import numpy as np
from numpy.typing import NDArray

from .bits import flags, pack, packed_size, unpack

BITMAP, INDICES = 0, 1


def form_of(elements: int, kept: int) -> int:
    """The smaller form of the two."""
    smaller = places_size(elements, kept, INDICES) < places_size(elements, kept, BITMAP)
    return INDICES if smaller else BITMAP


def places_size(elements: int, kept: int, form: int) -> int:
    return packed_size(elements, 1) if form == BITMAP else packed_size(kept, _width(elements))


def smallest_places(elements: int, kept: int) -> int:
    """Bytes in the smaller form; the ledger asks at every message."""
    return min((elements + 7) // 8, (kept * max(elements - 1, 0).bit_length() + 7) // 8)


def packed_places(is_kept: NDArray[np.bool_], at: NDArray[np.int64], form: int) -> NDArray[np.uint8]:
    """The bytes of a flat mask; `at` are the indices where it is true."""
    return np.packbits(is_kept, bitorder="little") if form == BITMAP else pack(at, _width(len(is_kept)))


def refuse_other_form(elements: int, kept: int, form: int) -> None:
    """The larger form is never written. Refusing it keeps the work of unpacking within a few times the tensor."""
    if kept > elements or form != form_of(elements, kept):
        raise ValueError(f"{kept} of {elements} elements are not written in form {form}")


def read_places(data: memoryview, elements: int, kept: int, form: int) -> NDArray[np.int64]:
    """The indices of what leaves, in order."""
    if form == BITMAP:
        return read_bitmap(flags(data, elements), kept)
    at = unpack(data, kept, _width(elements))
    if kept and (at[-1] >= elements or (at[1:] <= at[:-1]).any()):
        raise ValueError(f"indices have to increase and stay below {elements}")
    return at


def read_bitmap(is_kept: NDArray[np.bool_], kept: int) -> NDArray[np.int64]:
    """The indices of what leaves, from a bit for every element."""
    at = is_kept.nonzero()[0]
    if len(at) != kept:
        raise ValueError(f"the bitmap has {len(at)} places for {kept} values")
    return at


def _width(elements: int) -> int:
    """ceil(log2 n): bits of an index."""
    return max(elements - 1, 0).bit_length()
